import torch
from torch import nn


class _Denoiser(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, 32), nn.SiLU(), nn.Linear(32, dim))

    def forward(self, x, sigma):
        return self.net(torch.cat([x, sigma.expand(x.shape[0], 1)], dim=1))


class HostEuler:
    """Keeps its sigmas in host memory, so that indexing them does not wait for the device."""

    def __init__(self, steps=20):
        self.sigmas = torch.linspace(1.0, 0.02, steps + 1)
        self.index = 0

    def step(self, output, sample):
        sigma = self.sigmas[self.index]
        target = self.sigmas[self.index + 1]
        derivative = (sample - output) / sigma  # <- cpu-scalar-tensor-operand
        following = sample + derivative * (target - sigma)  # <- cpu-scalar-tensor-operand
        self.index = (self.index + 1) % 20  # <- cpu-state-step-counter
        return following


def euler_keeps_sigmas_on_the_host(device):
    model = _Denoiser().to(device).eval()
    scheduler = HostEuler()
    sample = torch.randn(4, 12, device=device)
    level = torch.full((1, 1), 0.5, device=device)

    @torch.no_grad()
    def step():
        sample.copy_(scheduler.step(model(sample, level), sample))
        return sample

    return step
