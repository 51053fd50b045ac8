import torch
from torch import nn


class ActNorm(nn.Module):
    """Of a normalizing flow: initialized by the first batch, says a buffer."""

    def __init__(self, channels):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(1, channels))
        self.scale = nn.Parameter(torch.ones(1, channels))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))

    def forward(self, x):
        # The flag lives on the device; it is read in each call, also long after the first.
        if self.initialized.item() == 0:  # <- sync-item
            with torch.no_grad():
                self.loc.copy_(-x.mean(0, keepdim=True))
                self.scale.copy_(1 / (x.std(0, keepdim=True) + 1e-6))
                self.initialized.fill_(1)
        return self.scale * (x + self.loc), self.scale.abs().log().sum()


def flow_initialized_by_data(device):
    return ActNorm(5).to(device), (torch.randn(8, 5, device=device),)
