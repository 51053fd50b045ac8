"""Guidance and time steps are tensors on the device; tables are gathered there."""

import torch
from torch import nn


class DDIM:
    def __init__(self, steps=8):
        betas = torch.linspace(1e-4, 0.02, 1000)
        self.alphas = (1 - betas).cumprod(0).cuda()
        self.timesteps = torch.linspace(999, 0, steps).long().tolist()

    def step(self, noise, t, previous, sample):
        a, b = self.alphas[t], self.alphas[previous]
        x0 = (sample - (1 - a).sqrt() * noise) / a.sqrt()
        return b.sqrt() * x0 + (1 - b).sqrt() * noise


unet = nn.Conv2d(1, 1, 3, padding=1).cuda().eval()
ddim = DDIM()
latents = torch.zeros(1, 1, 8, 8, device="cuda")
t = torch.zeros(1, dtype=torch.long, device="cuda")
previous = torch.zeros(1, dtype=torch.long, device="cuda")
guidance = torch.ones((), device="cuda")


@torch.inference_mode()
def denoise():
    both = unet(torch.cat([latents, latents * 0.5]) + t * 1e-3)
    text, empty = both.chunk(2)
    noise = empty + guidance * (text - empty)
    latents.copy_(ddim.step(noise, t, previous, latents))


denoise()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    denoise()
for scale in (1.0, 7.5):
    guidance.fill_(scale)
    latents.normal_()
    for now, following in zip(ddim.timesteps, [*ddim.timesteps[1:], 0], strict=True):
        t.fill_(now)
        previous.fill_(following)
        graph.replay()
    print(scale, latents.std().item())
