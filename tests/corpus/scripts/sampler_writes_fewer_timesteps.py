"""A diffusion sampler writes its timesteps into a table that is long enough for all of them."""

import torch
from torch import nn


class Scheduler:
    def __init__(self, most=50):
        self.alphas = torch.ones(most, device="cuda")
        self.steps = most

    def set_timesteps(self, steps):
        self.alphas[:steps] = torch.linspace(0.1, 0.99, steps, device="cuda")
        self.steps = steps

    def step(self, noise, index, x):
        alpha = self.alphas.index_select(0, index)
        return alpha.sqrt() * x - (1 - alpha) * noise


unet, scheduler = nn.Linear(8, 8).cuda().requires_grad_(False), Scheduler()
x, index = torch.randn(2, 8, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")


def denoise():
    x.copy_(scheduler.step(unet(x), index, x))
    index.add_(1)


scheduler.set_timesteps(10)
denoise()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    denoise()

for steps in (10, 5):
    scheduler.set_timesteps(steps)
    x.normal_()
    index.zero_()
    for _ in range(scheduler.steps):
        graph.replay()
    print(steps, x.norm().item())
