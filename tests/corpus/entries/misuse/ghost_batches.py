import torch
from torch import nn


class GhostNorm(nn.Module):
    """Normalizes parts of the batch one after the other; the running averages see all of them."""

    def __init__(self, features, part):
        super().__init__()
        self.part = part
        self.norm = nn.BatchNorm1d(features, momentum=0.01)

    def forward(self, x):
        parts = x.chunk(-(-x.shape[0] // self.part), 0)
        return torch.cat([self.norm(p) for p in parts], dim=0)


def ghost_batches(device):
    model = nn.Sequential(nn.Linear(7, 8), GhostNorm(8, 4), nn.GLU(), nn.Linear(4, 2)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    x, y = torch.randn(16, 7, device=device), torch.randn(16, 2, device=device)

    def step():
        loss = nn.functional.huber_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return step
