import torch
from torch import nn


class BatchNormaliser(nn.Module):
    """The same count in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("var", torch.ones(()))
        self.register_buffer("count", torch.full((), 1e-4))

    def forward(self, x):
        batch_count = x.shape[0]
        delta = x.mean() - self.mean
        total = self.count + batch_count
        self.mean += delta * batch_count / total
        m2 = self.var * self.count + x.var(unbiased=False) * batch_count
        m2 = m2 + delta.square() * self.count * batch_count / total
        self.var.copy_(m2 / total)
        self.count.copy_(total)
        return (x - self.mean) / (self.var + 1e-8).sqrt()


def running_statistics_in_buffers(device):
    return BatchNormaliser().to(device), (torch.randn(64, device=device),)
