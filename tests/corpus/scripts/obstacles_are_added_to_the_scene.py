"""Obstacles are added to a scene whose step was captured."""

import torch


class Scene:
    def __init__(self):
        self.x = torch.rand(64, 2, device="cuda")
        self.v = torch.zeros(64, 2, device="cuda")
        self.obstacles = [((0.5, 0.5), 0.1)]

    def step(self, dt=0.01):
        self.v[:, 1] -= 9.81 * dt
        self.x.add_(self.v, alpha=dt)
        for (cx, cy), radius in self.obstacles:
            dx, dy = self.x[:, 0] - cx, self.x[:, 1] - cy
            hit = dx * dx + dy * dy < radius * radius
            self.v.masked_fill_(hit[:, None], 0.0)


scene = Scene()
scene.step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    scene.step()

for frame in range(30):
    if frame == 10:
        scene.obstacles.append(((0.2, 0.3), 0.15))  # guilty: the graph has one obstacle
    graph.replay()
print(scene.v.abs().mean().item())
