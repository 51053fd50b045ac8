from __future__ import annotations

import torch
from torch import nn


class _Thaw(nn.Module):
    """Gradual unfreezing: another block is trained every few steps, from the top."""

    def __init__(self, width=8, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.trained = 0

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            depth_from_top = len(self.blocks) - 1 - i
            active = depth_from_top * 4 <= self.trained  # <- control-flow-frozen
            out = block(x) if active else block(x).detach()  # <- control-flow-frozen
            x = x + out.tanh()
        self.trained += 1  # <- control-flow-frozen
        return x


def blocks_thaw_from_the_top(device):
    model = _Thaw().to(device)
    return model, (torch.randn(4, 8, device=device),)
