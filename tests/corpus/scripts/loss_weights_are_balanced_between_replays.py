"""The losses of an equation and of its boundary are balanced every few steps by their gradients."""

import torch
from torch import nn

torch.manual_seed(10)
field = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).cuda()
optimizer = torch.optim.Adam(field.parameters(), lr=2e-3, capturable=True)
inside = torch.rand(128, 2, device="cuda", requires_grad=True)
border = torch.rand(32, 2, device="cuda")
weights = torch.ones(2, device="cuda")


def losses():
    value = field(inside)
    (slope,) = torch.autograd.grad(value.sum(), inside, create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 0].sum(), inside, create_graph=True)
    equation = (bend[:, 0] - slope[:, 1]).square().mean()
    return torch.stack([equation, field(border).square().mean()])


def step():
    optimizer.zero_grad(set_to_none=True)
    parts = losses()
    (weights * parts).sum().backward(inputs=list(field.parameters()))
    optimizer.step()
    return parts.detach()


def balance():
    norms = []
    for part in losses():
        slopes = torch.autograd.grad(
            part, list(field.parameters()), retain_graph=True, allow_unused=True
        )
        norms.append(torch.cat([s.flatten() for s in slopes if s is not None]).norm())
    norms = torch.stack(norms)
    weights.lerp_(norms.sum() / norms.clamp_min(1e-8), 0.1)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    parts = step()

for iteration in range(20):
    if iteration % 5 == 0:
        balance()
    with torch.no_grad():
        inside.uniform_()
        border[:, 0].random_(0, 2)
    graph.replay()
print(weights.tolist(), parts.tolist())
