import torch
from torch import nn


def cpu_randperm_batch(device):
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(64, 8, device=device)
    lin = nn.Linear(8, 1).to(device)

    def loss():
        index = torch.randperm(64, generator=generator)[:16]  # <- rng-frozen-seed
        return lin(data[index]).square().mean()  # <- h2d-index-with-list-or-cpu-tensor

    return loss
