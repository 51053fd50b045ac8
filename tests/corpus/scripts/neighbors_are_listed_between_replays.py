"""Neighbor lists of a molecular simulation are rebuilt on the host when atoms have moved."""

import numpy as np
import torch

ATOMS, NEIGHBORS, CUTOFF, SKIN = 24, 32, 1.0, 0.3


class Simulation:
    def __init__(self):
        self.positions = torch.rand(ATOMS, 3, device="cuda") * 2
        self.velocities = torch.zeros(ATOMS, 3, device="cuda")
        self.neighbors = torch.zeros(ATOMS, NEIGHBORS, dtype=torch.long, device="cuda")
        self.mask = torch.zeros(ATOMS, NEIGHBORS, device="cuda")
        self.reference = torch.empty_like(self.positions)
        self.builds = 0
        self.rebuild()

    def rebuild(self):
        where = self.positions.cpu().numpy()
        distances = np.linalg.norm(where[:, None] - where[None], axis=-1)
        neighbors, mask = np.zeros((ATOMS, NEIGHBORS), np.int64), np.zeros((ATOMS, NEIGHBORS))
        for atom, row in enumerate(distances):
            near = [other for other in np.flatnonzero(row < CUTOFF + SKIN) if other != atom]
            neighbors[atom, : len(near)], mask[atom, : len(near)] = near, 1.0
        self.neighbors.copy_(torch.from_numpy(neighbors))
        self.mask.copy_(torch.from_numpy(mask))
        self.reference.copy_(self.positions)
        self.builds += 1

    def step(self, dt=0.002):
        offsets = self.positions[:, None] - self.positions[self.neighbors]
        distances = offsets.norm(dim=-1).clamp(min=0.1)
        strength = (CUTOFF - distances).clamp(min=0) * self.mask / distances
        self.velocities.add_((offsets * strength[..., None]).sum(1), alpha=dt)
        self.positions.add_(self.velocities, alpha=dt)
        return (self.positions - self.reference).norm(dim=-1).max()


simulation = Simulation()
simulation.step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    moved = simulation.step()

for number in range(60):
    graph.replay()
    if number % 10 == 9 and moved.item() > SKIN / 2:
        simulation.rebuild()
print(simulation.builds, simulation.velocities.norm().item())
