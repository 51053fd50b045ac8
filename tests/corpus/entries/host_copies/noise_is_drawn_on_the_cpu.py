import torch
from torch import nn


class _Denoiser(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, 32), nn.SiLU(), nn.Linear(32, dim))

    def forward(self, x, sigma):
        return self.net(torch.cat([x, sigma.expand(x.shape[0], 1)], dim=1))


def noise_is_drawn_on_the_cpu(device):
    model = _Denoiser().to(device).eval()
    sample = torch.randn(4, 12, device=device)
    level = torch.full((1, 1), 0.3, device=device)
    generator = torch.Generator("cpu").manual_seed(0)

    @torch.no_grad()
    def step():
        noise = torch.randn(4, 12, generator=generator)
        noise = noise.to(device)  # <- h2d-pageable-copy
        sample.copy_(model(sample, level) + 0.1 * noise)
        return sample

    return step
