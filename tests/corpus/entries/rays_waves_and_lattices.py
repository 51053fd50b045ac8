"""What groups in graphics, electromagnetics and statistical physics step on a GPU."""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import nn
from torch.nn import functional


class _OpeningFrequencies(nn.Module):
    """A field of color whose encoding opens its frequencies from coarse to fine (BARF)."""

    def __init__(self, bands=4, hidden=16, opened_after=40):
        super().__init__()
        self.bands, self.opened_after = bands, opened_after
        self.register_buffer("frequencies", math.pi * 2.0 ** torch.arange(bands))
        self.register_buffer("order", torch.arange(bands, dtype=torch.float32))
        self.net = nn.Sequential(nn.Linear(3 * bands * 2, hidden), nn.ReLU(), nn.Linear(hidden, 4))
        self.register_buffer("iteration", torch.zeros((), dtype=torch.long))

    def window(self):
        alpha = self.bands * self.iteration / self.opened_after
        self.iteration += 1
        return 0.5 * (1 - torch.cos(math.pi * (alpha - self.order).clamp(0, 1)))

    def forward(self, points):
        angles = points.unsqueeze(-1) * self.frequencies
        encoded = torch.stack([angles.sin(), angles.cos()], -1) * self.window().unsqueeze(-1)
        return self.net(encoded.flatten(-3))


def frequencies_open_with_the_iterations(device):
    return _OpeningFrequencies().to(device), (torch.rand(16, 3, device=device),)


class _Renderer(nn.Module):
    """Stratified samples along rays, then finer ones where the weights of the first are large."""

    def __init__(self, coarse=12, fine=8, near=0.5, far=3.0, hidden=16):
        super().__init__()
        self.fine, self.near, self.far = fine, near, far
        self.register_buffer("edges", torch.linspace(near, far, coarse + 1))
        self.net = nn.Sequential(nn.Linear(3, hidden), nn.Softplus(), nn.Linear(hidden, 4))

    def composite(self, origins, directions, depths):
        points = origins[:, None] + depths[..., None] * directions[:, None]
        raw = self.net(points)
        gaps = torch.diff(depths, dim=-1, append=depths.new_full((len(depths), 1), self.far))
        opacity = 1 - torch.exp(-functional.softplus(raw[..., 3]) * gaps.clamp(min=0))
        clear = torch.cumprod(1 - opacity + 1e-10, -1)  # guilty: backward looks for zeros
        clear = clear.roll(1, -1)
        clear[:, 0] = 1.0
        weights = opacity * clear
        return (weights[..., None] * raw[..., :3].sigmoid()).sum(1), weights

    def forward(self, origins, directions):
        lower, upper = self.edges[:-1], self.edges[1:]
        jitter = torch.rand(len(origins), len(lower), device=origins.device)
        depths = lower + jitter * (upper - lower)
        _, weights = self.composite(origins, directions, depths)
        share = (weights.detach() + 1e-5) / (weights.detach() + 1e-5).sum(-1, keepdim=True)
        below = functional.pad(share.cumsum(-1), (1, 0))
        wanted = torch.rand(len(origins), self.fine, device=origins.device)
        right = torch.searchsorted(below, wanted, right=True).clamp(1, len(lower))
        left = right - 1
        start, end = below.gather(1, left), below.gather(1, right)
        part = (wanted - start) / (end - start).clamp(min=1e-6)
        finer = self.edges[left] + part * (self.edges[right] - self.edges[left])
        merged = torch.cat([depths, finer], -1).sort(-1).values
        color, weights = self.composite(origins, directions, merged)
        return color, (weights * merged).sum(-1)


def rays_are_sampled_twice(device):
    directions = functional.normalize(torch.randn(6, 3, device=device), dim=-1)
    return _Renderer().to(device), (torch.zeros(6, 3, device=device), directions)


class _Waveguide:
    """Two staggered fields of a one-dimensional Maxwell solver with absorbing ends."""

    def __init__(self, device, cells=32, courant=0.5):
        self.electric = torch.zeros(cells, device=device)
        self.magnetic = torch.zeros(cells - 1, device=device)
        self.damping = torch.ones(cells, device=device)
        self.damping[:4] = self.damping[-4:] = 0.8
        self.courant = courant

    def advance(self, drive):
        self.magnetic += self.courant * torch.diff(self.electric)
        self.electric[1:-1] += self.courant * torch.diff(self.magnetic)
        self.electric *= self.damping
        self.electric[8] += drive


def wave_is_averaged_over_a_window(device):
    guide = _Waveguide(device)
    window = deque(maxlen=4)

    def step(drive):
        guide.advance(drive)
        window.append(guide.electric.square())  # guilty: only the capture appends
        return sum(window) / len(window)  # guilty: as above

    return step, (torch.ones((), device=device),)


def wave_is_driven_by_a_table(device):
    guide = _Waveguide(device)
    steps = 16
    pulse = torch.exp(-(((torch.arange(steps) - 6) / 3.0) ** 2)).to(device)
    traces = torch.zeros(steps, 2, device=device)
    receivers = torch.tensor([12, 20], device=device)
    now = torch.zeros(1, dtype=torch.long, device=device)

    def step(gain):
        guide.advance(gain * pulse.index_select(0, now).squeeze(0))
        traces.index_copy_(0, now, guide.electric[receivers].unsqueeze(0))
        now.add_(1).remainder_(steps)
        return traces.square().mean(0)

    return step, (torch.ones((), device=device),)


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


def spins_flip_one_color_at_a_call(device):
    lattice = _Lattice(device)

    def sweep(field, beta):
        board = lattice.boards[lattice.color]  # guilty: the color of the capture
        flipped = lattice.flip(board, field, beta)
        lattice.color = 1 - lattice.color  # guilty: alternates once only
        return flipped.sum(), lattice.spins.mean()

    return sweep, (torch.zeros((), device=device), torch.full((), 0.4, device=device))


def spins_flip_both_colors(device):
    lattice = _Lattice(device)
    magnetization = torch.zeros(2, device=device)

    def sweep(field, beta):
        flipped = [lattice.flip(board, field, beta) for board in lattice.boards]
        mean = lattice.spins.mean()
        magnetization.mul_(0.9).add_(torch.stack([mean, mean.square()]), alpha=0.1)
        return torch.stack(flipped).sum((1, 2)), magnetization[1] - magnetization[0].square()

    return sweep, (torch.zeros((), device=device), torch.full((), 0.4, device=device))


def _hamiltonian(device, levels=6):
    mixed = torch.randn(levels, levels, dtype=torch.complex64)
    return ((mixed + mixed.mH) / 2).to(device)


def state_evolves_by_a_matrix_exponential(device):
    free, coupling = _hamiltonian(device), _hamiltonian(device)
    state = torch.zeros(6, dtype=torch.complex64, device=device)
    state[0] = 1.0

    def step(amplitude):
        generator = -1j * 0.05 * (free + amplitude * coupling)
        moved = torch.linalg.matrix_exp(generator) @ state  # guilty: it picks a degree on the host
        state.copy_(moved / torch.linalg.vector_norm(moved))
        return state.abs().square()

    return step, (torch.full((), 0.3, device=device),)


def state_evolves_in_its_eigenbasis(device):
    energies, basis = torch.linalg.eigh(_hamiltonian("cpu"))
    energies, basis = energies.to(device), basis.to(device)
    half_kick = torch.linspace(-1, 1, 6, device=device)
    state = torch.zeros(6, dtype=torch.complex64, device=device)
    state[0] = 1.0

    def step(amplitude):
        kick = torch.polar(torch.ones_like(half_kick), -0.025 * amplitude * half_kick)
        phase = torch.polar(torch.ones_like(energies), -0.05 * energies)
        kicked = kick * state
        moved = kick * (basis @ (phase * (basis.mH @ kicked)))
        state.copy_(moved)
        return state.abs().square(), torch.vdot(moved, kicked).real

    return step, (torch.full((), 0.3, device=device),)
