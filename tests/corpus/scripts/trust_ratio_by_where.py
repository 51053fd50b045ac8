"""LARS whose trust ratio is chosen on the device."""

import torch
from torch import nn


class LARS(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.1, eta=0.01, momentum=0.9):
        super().__init__(parameters, {"lr": lr, "eta": eta, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            ready = [p for p in group["params"] if p.grad is not None]
            weights = torch._foreach_norm(ready)
            gradients = torch._foreach_norm([p.grad for p in ready])
            for p, weight, gradient in zip(ready, weights, gradients, strict=True):
                fine = (weight > 0) & (gradient > 0)
                trust = torch.where(fine, group["eta"] * weight / gradient.clamp(min=1e-12), 1.0)
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
for _ in range(5):
    x.copy_(torch.randn(32, 8))
    graph.replay()
print(loss.item())
