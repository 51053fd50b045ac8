import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


# Checkpoint that saves the RNG state, and sets it in a backward that is a graph of its own.
class Ckpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.GELU())

    def forward(self, x):
        return checkpoint(
            self.block, x, use_reentrant=False
        )  # <- activation-checkpointing if recomputes-other-numbers


def checkpoint_rng(device):
    torch.manual_seed(0)
    return Ckpt().to(device), (torch.randn(4, 16, device=device),)
