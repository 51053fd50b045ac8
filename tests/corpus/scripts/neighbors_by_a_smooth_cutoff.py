"""Forces between near points; those beyond the cutoff weigh nothing."""

import torch
from torch import nn

torch.manual_seed(0)
energy = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1)).cuda().requires_grad_(False)
points = torch.rand(20, 3, device="cuda")
i, j = torch.triu_indices(20, 20, offset=1, device="cuda")


def forces():
    x = points.detach().requires_grad_()
    distance = (x[i] - x[j]).norm(dim=1, keepdim=True)
    inside = 0.5 * (torch.cos(torch.pi * distance.clamp(max=0.4) / 0.4) + 1)
    return -torch.autograd.grad((energy(distance) * inside).sum(), x)[0]


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
for i_step in range(10):
    graph.replay()
    if i_step % 5 == 4:
        print(i_step, points.mean().item(), f.norm().item())
