import torch
from torch import nn


def checkpoint_without_rng(device):
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)
    )
    blocks = blocks.to(device)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = blocks

        def forward(self, x):
            for block in self.blocks:
                x = x + torch.utils.checkpoint.checkpoint(
                    block, x, use_reentrant=False, preserve_rng_state=False
                )
            return x

    return Net(), (torch.randn(4, 16, device=device, requires_grad=True),)
