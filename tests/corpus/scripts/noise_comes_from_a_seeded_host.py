"""An image sampler that draws its noise on the host: seeds give the same picture anywhere."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.SiLU())
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x, sigma):
        return self.out(self.net(torch.cat([x, sigma.expand_as(x[:, :1])], 1)))


generator = torch.Generator("cpu").manual_seed(3)
denoiser = Denoiser().cuda().requires_grad_(False)
picture = torch.randn(1, 3, 8, 8, generator=generator).cuda()
sigma = torch.ones(1, 1, 1, 1, device="cuda")


def ancestral_step():
    clean = picture - sigma * denoiser(picture, sigma)
    noise = torch.randn(picture.shape, generator=generator)  # guilty: drawn on the host
    picture.copy_(clean + 0.5 * sigma * noise.to("cuda"))  # guilty: copied from pageable memory
    return clean


ancestral_step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    clean = ancestral_step()

for value in (1.0, 0.6, 0.3, 0.1):
    sigma.fill_(value)
    graph.replay()
print(clean.mean().item())
