"""Obstacles are added to a scene that has slots for them."""

import torch


class Scene:
    def __init__(self, slots=4):
        self.x = torch.rand(64, 2, device="cuda")
        self.v = torch.zeros(64, 2, device="cuda")
        self.centers = torch.zeros(slots, 2, device="cuda")
        self.radii = torch.zeros(slots, device="cuda")
        self.used = 0

    def add(self, center, radius):
        self.centers[self.used].copy_(torch.tensor(center))
        self.radii[self.used] = radius
        self.used += 1

    def step(self, dt=0.01):
        self.v[:, 1] -= 9.81 * dt
        self.x.add_(self.v, alpha=dt)
        apart = (self.x[:, None] - self.centers).square().sum(-1)
        hit = (apart < self.radii.square()).any(1, keepdim=True)
        self.v.masked_fill_(hit, 0.0)


scene = Scene()
scene.add((0.5, 0.5), 0.1)
scene.step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    scene.step()

for frame in range(30):
    if frame == 10:
        scene.add((0.2, 0.3), 0.15)
    graph.replay()
print(scene.used, scene.v.abs().mean().item())
