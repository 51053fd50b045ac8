"""LARS: the rate of each layer follows the norms of its weights and gradients."""

import torch
from torch import nn


class LARS(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.1, eta=0.01, momentum=0.9):
        super().__init__(parameters, {"lr": lr, "eta": eta, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                weight, gradient = p.norm(), p.grad.norm()
                trust = 1.0
                if weight > 0 and gradient > 0:  # guilty: asks the device
                    trust = group["eta"] * weight / gradient
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p)
                state["velocity"].mul_(group["momentum"]).add_(p.grad * trust)
                p.add_(state["velocity"], alpha=-group["lr"])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).cuda()
optimizer = LARS(model.parameters())
x = torch.randn(32, 8, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
graph.replay()
print(loss.item())
