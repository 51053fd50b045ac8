from __future__ import annotations

import torch
from torch import nn


class _VisionPositions(nn.Module):
    """Rotary angles of image patches, by rows and columns of each image's grid."""

    def __init__(self, dim=8):
        super().__init__()
        self.register_buffer("inverse", 1.0 / 100.0 ** (torch.arange(0, dim, 2) / dim))

    def forward(self, patches, grids):
        positions = []
        for frames, rows, columns in grids:
            y = torch.arange(rows, device=patches.device)  # <- sync-slice-with-tensor-bounds
            x = torch.arange(columns, device=patches.device)  # <- sync-slice-with-tensor-bounds
            grid = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flatten(0, 1)
            positions.append(grid.repeat(int(frames), 1))  # <- sync-item
        angles = torch.cat(positions)[..., None] * self.inverse
        angles = angles.flatten(1)
        return patches * angles.cos() + patches.flip(-1) * angles.sin()


def patches_are_placed_by_the_grid_of_an_image(device):
    grids = torch.tensor([[1, 2, 4], [2, 2, 2]], device=device)
    return _VisionPositions().to(device), (torch.randn(16, 8, device=device), grids)
