"""Diffusion sampling: a property gives alpha as an element of a device table, by a device index."""

# The host index is for the loop only; `index` on the device moves inside the graph.

import numpy as np
import torch
from torch import nn


class Scheduler:
    def __init__(self, steps):
        self.steps = steps
        self.table = torch.from_numpy(np.linspace(1.0, 0.5, steps, dtype=np.float32)).cuda()
        self.index = torch.full((1,), steps - 1, device="cuda")
        self.done = 0

    @property
    def alpha(self):
        return self.table[self.index]

    def advance(self):
        self.index.sub_(1).clamp_(min=0)


scheduler = Scheduler(4)
denoiser = nn.Linear(4, 4).cuda().eval()
latent = torch.ones(2, 4, device="cuda")


@torch.no_grad()
def denoise():
    noise = denoiser(latent)
    latent.sub_(noise * (1 - scheduler.alpha).sqrt()).div_(scheduler.alpha.sqrt())
    scheduler.advance()


denoise()
latent.fill_(1.0)
scheduler.index.fill_(scheduler.steps - 1)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    denoise()
latent.fill_(1.0)
scheduler.index.fill_(scheduler.steps - 1)
while scheduler.done < scheduler.steps:
    graph.replay()
    scheduler.done += 1
print(latent.sum().item())
