"""Diffusion sampling: a property of the scheduler gives alpha for the current timestep."""

# The property returns a Python float from a list; the graph keeps the float of timestep 3.

import torch
from torch import nn


class Scheduler:
    def __init__(self, steps):
        self.alphas = [1 - i / (2 * steps) for i in range(steps)]
        self.index = steps - 1

    @property
    def alpha(self):
        return self.alphas[self.index]

    def advance(self):
        self.index -= 1  # guilty: replays keep the alpha of the first timestep


scheduler = Scheduler(4)
denoiser = nn.Linear(4, 4).cuda().eval()
latent = torch.ones(2, 4, device="cuda")


@torch.no_grad()
def denoise():
    noise = denoiser(latent)
    latent.sub_(noise * (1 - scheduler.alpha) ** 0.5).div_(
        scheduler.alpha**0.5
    )  # guilty: alpha is a number


kept = latent.clone()
denoise()
latent.copy_(kept)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    denoise()
while scheduler.index > 0:
    graph.replay()
    scheduler.advance()
print(latent.sum().item())
