import torch
from torch import nn


class Kalman(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4, device=device))
        self.register_buffer("cov", torch.eye(4, device=device))
        self.register_buffer(
            "motion", torch.eye(4, device=device) + 0.1 * torch.ones(4, 4, device=device).triu(1)
        )
        self.register_buffer("sensor", torch.eye(2, 4, device=device))
        self.register_buffer("noise", 0.1 * torch.eye(2, device=device))

    @torch.no_grad()
    def forward(self, z):
        mean = self.motion @ self.mean
        cov = self.motion @ self.cov @ self.motion.T + 0.01 * torch.eye(4, device=z.device)
        root, _info = torch.linalg.cholesky_ex(self.sensor @ cov @ self.sensor.T + self.noise)
        half = torch.linalg.solve_triangular(root, self.sensor @ cov, upper=False)
        white = torch.linalg.solve_triangular(root, (z - self.sensor @ mean)[:, None], upper=False)
        self.mean.copy_(mean + (half.T @ white)[:, 0])
        self.cov.copy_(cov - half.T @ half)
        return self.mean.clone()


def filter_keeps_its_belief(device):
    # State is two buffers written in place; the `_ex` factorization checks nothing.
    return Kalman(device), (torch.randn(2, device=device),)
