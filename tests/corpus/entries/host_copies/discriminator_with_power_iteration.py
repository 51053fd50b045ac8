import torch
from torch import nn
from torch.nn import functional


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(8, 1))

    def forward(self, x):
        return self.head(functional.leaky_relu(self.body(x), 0.2))


def discriminator_with_power_iteration(device):
    # The vectors of the power iteration are buffers, updated in place in each forward.
    return Discriminator().to(device).train(), (torch.randn(4, 6, device=device),)
