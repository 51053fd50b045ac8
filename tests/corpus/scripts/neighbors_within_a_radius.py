"""Forces between the points of a cloud that are near to each other."""

import torch
from torch import nn

torch.manual_seed(0)
energy = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1)).cuda()
points = torch.rand(20, 3, device="cuda")


def forces():
    x = points.detach().requires_grad_()
    distance = torch.cdist(x, x)
    near = (distance < 0.4) & (distance > 0)
    i, j = near.nonzero(as_tuple=True)  # guilty: how many is known to the device only
    total = energy((x[i] - x[j]).norm(dim=1, keepdim=True)).sum()
    return -torch.autograd.grad(total, x)[0]


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        forces()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    f = forces()
    points.add_(f, alpha=1e-3)
for _ in range(10):
    graph.replay()
print(points.mean().item())
