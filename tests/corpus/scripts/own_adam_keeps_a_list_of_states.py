"""An optimizer of one's own has a list of states, each with a Python number."""

import torch
from torch import nn


class TinyAdam:
    def __init__(self, params, lr=1e-3):
        self.params = list(params)
        self.state = [{"t": 0, "m": torch.zeros_like(p)} for p in self.params]
        self.lr = lr

    @torch.no_grad()
    def step(self):
        for i, p in enumerate(self.params):
            s = self.state[i]
            s["t"] += 1  # guilty: no replay counts
            s["m"].lerp_(p.grad, 0.1)
            p.sub_(s["m"], alpha=self.lr / (1 - 0.9 ** s["t"]))  # guilty: the count of the capture


model = nn.Linear(4, 4).cuda()
opt = TinyAdam(model.parameters())
x = torch.randn(8, 4, device="cuda")


def step():
    model.zero_grad(set_to_none=False)
    model(x).square().mean().backward()
    opt.step()


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    step()
for _ in range(6):
    g.replay()
print(model.weight.sum().item())
