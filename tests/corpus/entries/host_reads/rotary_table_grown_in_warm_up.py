import torch
from torch import nn


class RotaryTable(nn.Module):
    """The table grows with the longest sequence, which does not change after warm-up."""

    def __init__(self, width):
        super().__init__()
        self.width, self.longest, self.table = width, 0, None

    def forward(self, x):
        length = x.shape[1]
        if length > self.longest:
            rates = 10000.0 ** (-torch.arange(0, self.width, 2, device=x.device) / self.width)
            angles = torch.outer(torch.arange(length, device=x.device), rates)
            self.table, self.longest = torch.polar(torch.ones_like(angles), angles), length
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.table[:length]).flatten(-2)


def rotary_table_grown_in_warm_up(device):
    return RotaryTable(8).to(device), (torch.randn(2, 5, 8, device=device),)
