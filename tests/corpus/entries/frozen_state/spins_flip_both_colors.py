from __future__ import annotations

import torch


class _Lattice:
    """Spins on a torus; a checkerboard has no neighbors of its own color."""

    def __init__(self, device, side=8):
        self.spins = torch.where(torch.rand(side, side, device=device) < 0.5, -1.0, 1.0)
        rows = torch.arange(side, device=device)
        even = (rows[:, None] + rows) % 2 == 0
        self.boards = (even, ~even)
        self.color = 0

    def flip(self, board, field, beta):
        around = sum(self.spins.roll(s, d) for s in (1, -1) for d in (0, 1))
        cost = 2 * self.spins * (around + field)
        flipped = (torch.rand_like(cost) < torch.exp(-beta * cost)) & board
        self.spins.copy_(torch.where(flipped, -self.spins, self.spins))
        return flipped


def spins_flip_both_colors(device):
    lattice = _Lattice(device)
    magnetization = torch.zeros(2, device=device)

    def sweep(field, beta):
        flipped = [lattice.flip(board, field, beta) for board in lattice.boards]
        mean = lattice.spins.mean()
        magnetization.mul_(0.9).add_(torch.stack([mean, mean.square()]), alpha=0.1)
        return torch.stack(flipped).sum((1, 2)), magnetization[1] - magnetization[0].square()

    return sweep, (torch.zeros((), device=device), torch.full((), 0.4, device=device))
