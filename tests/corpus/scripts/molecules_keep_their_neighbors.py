"""Molecular dynamics: ten steps for each replay; neighbors and temperature change in between."""

import torch


class Simulation:
    def __init__(self, particles=64, box=6.0, neighbors=16):
        axis = torch.arange(4, device="cuda") * (box / 4)
        grid = torch.cartesian_prod(axis, axis, axis)
        self.box, self.neighbors = box, neighbors
        self.position = grid + 0.05 * torch.randn(particles, 3, device="cuda")
        self.velocity = 0.1 * torch.randn(particles, 3, device="cuda")
        self.force = torch.zeros_like(self.position)
        self.temperature = torch.tensor(0.5, device="cuda")
        self.near = torch.zeros(particles, neighbors, dtype=torch.int64, device="cuda")
        self.time = 0.0
        self.find_neighbors()

    def find_neighbors(self):
        difference = self.position[:, None] - self.position[None]
        difference -= self.box * torch.round(difference / self.box)
        distance = difference.square().sum(-1)
        distance.fill_diagonal_(torch.inf)
        self.near.copy_(distance.topk(self.neighbors, largest=False).indices)

    def forces(self):
        difference = self.position[:, None] - self.position[self.near]
        difference = difference - self.box * torch.round(difference / self.box)
        inverse = 1 / difference.square().sum(-1, keepdim=True).clamp_min(0.5)
        sixth = inverse**3
        return (24 * inverse * sixth * (2 * sixth - 1) * difference).sum(1)

    def step(self, dt=0.002):
        self.velocity.add_(self.force, alpha=dt / 2)
        self.position.add_(self.velocity, alpha=dt)
        self.position.remainder_(self.box)
        self.force.copy_(self.forces())
        self.velocity.add_(self.force, alpha=dt / 2)
        kinetic = self.velocity.square().mean()
        scale = (1 + 0.02 * (self.temperature / kinetic.clamp_min(1e-6) - 1)).clamp_min(0).sqrt()
        self.velocity.mul_(scale)
        return kinetic


torch.manual_seed(0)
simulation = Simulation()
simulation.force.copy_(simulation.forces())
simulation.step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(10):
        kinetic = simulation.step()

for block in range(6):
    simulation.find_neighbors()
    simulation.temperature.fill_(0.5 + 0.1 * block)
    graph.replay()
    simulation.time += 10 * 0.002
    print(round(simulation.time, 3), kinetic.item())
