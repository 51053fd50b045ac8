"""A channel flow whose inflow changes with time."""

import math

import torch
from torch.nn import functional

HEIGHT, LENGTH = 16, 32
KERNEL = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])[None, None]


def inflow(steps):
    heights = torch.linspace(-1, 1, HEIGHT, device="cuda")
    for step in range(steps):
        yield (1 - heights.square()) * (1 + 0.5 * math.sin(0.3 * step))


def advance(domain, dt=0.1, viscosity=0.2):
    u = domain["u"]
    u[:, 0] = domain["inflow"]
    padded = functional.pad(u[None, None], (1, 1, 1, 1), mode="replicate")
    laplacian = functional.conv2d(padded, domain["kernel"])[0, 0]
    advection = u * (u - u.roll(1, 1))
    u.add_(viscosity * laplacian - advection, alpha=dt)


domain = {
    "u": torch.zeros(HEIGHT, LENGTH, device="cuda"),
    "inflow": torch.zeros(HEIGHT, device="cuda"),
    "kernel": KERNEL.cuda(),
}
advance(domain)
domain["u"].zero_()
torch.cuda.synchronize()

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    advance(domain)

for number, profile in enumerate(inflow(20)):
    domain["inflow"] = profile  # guilty: the graph reads the first one
    graph.replay()
    if number % 5 == 4:
        print(number, domain["u"].mean().item())
