"""An optimizer of one's own keeps `state["step"]` as a Python number."""

import torch
from torch import nn


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, warmup=20):
        super().__init__(params, {"lr": lr, "warmup": warmup})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["exp_avg"] = 0, torch.zeros_like(p)
                state["step"] += 1  # guilty: no replay counts
                ramp = min(1.0, state["step"] / group["warmup"])
                update = state["exp_avg"].lerp(p.grad, 0.1).sign_()
                p.add_(update, alpha=-group["lr"] * ramp)  # guilty: the count of the capture
                state["exp_avg"].lerp_(p.grad, 0.01)


model = nn.Linear(8, 8).cuda()
optimizer = Lion(model.parameters())
x = torch.randn(4, 8, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(10):
    graph.replay()
print(loss.item())
