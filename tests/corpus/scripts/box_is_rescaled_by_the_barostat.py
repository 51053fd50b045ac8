"""Molecular dynamics: the pressure control changes the length of the box, a number of the host."""

from dataclasses import dataclass

import torch


@dataclass
class System:
    positions: torch.Tensor
    velocities: torch.Tensor
    box: float


def forces(system):
    offset = system.positions[:, None] - system.positions[None, :]
    offset = offset - system.box * torch.round(offset / system.box)  # guilty: frozen
    square = offset.square().sum(-1) + torch.eye(len(offset), device="cuda") * 1e6
    inverse = 1.0 / square.clamp_min(0.64)
    strength = 24 * (2 * inverse**7 - inverse**4)
    force = (strength[..., None] * offset).sum(1)
    virial = (force * system.positions).sum()
    return force, virial


def substeps(system, step=1e-3, count=4):
    virial = None
    for _ in range(count):
        force, virial = forces(system)
        system.velocities.add_(force, alpha=step)
        system.positions.add_(system.velocities, alpha=step)
        system.positions.remainder_(system.box)  # guilty: as above
    return virial


def barostat(system, virial, target=1.0, strength=1e-4):
    kinetic = system.velocities.square().sum().item()
    pressure = (kinetic + virial.item()) / (3 * system.box**3)
    scale = min(max(1 + strength * (pressure - target), 0.99), 1.01)
    system.positions.mul_(scale)
    system.box *= scale  # guilty: the graph does not see it


torch.manual_seed(9)
grid = torch.cartesian_prod(*[torch.arange(3.0)] * 3).cuda() * 1.2
system = System(grid, 0.1 * torch.randn_like(grid), 3.6)
substeps(system)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    virial = substeps(system)

for _ in range(5):
    graph.replay()
    barostat(system, virial)  # guilty: as above
print(system.box, system.velocities.norm().item())
