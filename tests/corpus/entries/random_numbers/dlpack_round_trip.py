import torch
import torch.utils.dlpack
from torch import nn


class Bridge(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    @torch.no_grad()
    def forward(self, x):
        y = torch.from_dlpack(self.fc(x))
        y.clamp_(min=0)
        return y * 2


def dlpack_round_trip(device):
    torch.manual_seed(0)
    return Bridge().to(device), (torch.randn(3, 4, device=device),)
