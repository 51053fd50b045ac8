"""A wave equation whose time step is halved when the solution becomes rough."""

import torch

GRID = 64


class Wave:
    def __init__(self, speed=1.0):
        x = torch.linspace(0, 1, GRID, device="cuda")
        self.u = torch.exp(-200 * (x - 0.5).square())
        self.v = torch.zeros_like(self.u)
        self.speed = speed
        self.dx = 1.0 / (GRID - 1)
        self.dt = torch.tensor(0.008)  # <- cpu-scalar-tensor-operand
        self.time = 0.0

    def acceleration(self):
        curvature = self.u.roll(1) - 2 * self.u + self.u.roll(-1)
        return self.speed**2 * curvature / self.dx**2

    def step(self):
        self.v += self.acceleration() * self.dt  # <- cpu-scalar-tensor-operand
        self.u += self.v * self.dt  # <- cpu-scalar-tensor-operand

    def refine(self):
        self.dt.mul_(0.5)  # <- cpu-scalar-tensor-operand


wave = Wave()
wave.step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    wave.step()

for number in range(40):
    graph.replay()
    wave.time += wave.dt.item()
    if number % 10 == 9:
        roughness = (wave.u - wave.u.roll(1)).abs().max().item()
        print(f"{wave.time:.3f} {roughness:.3f}")
        if roughness > 0.01:
            wave.refine()
