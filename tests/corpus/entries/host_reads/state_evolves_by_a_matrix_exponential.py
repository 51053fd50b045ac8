from __future__ import annotations

import torch


def _hamiltonian(device, levels=6):
    mixed = torch.randn(levels, levels, dtype=torch.complex64)
    return ((mixed + mixed.mH) / 2).to(device)


def state_evolves_by_a_matrix_exponential(device):
    free, coupling = _hamiltonian(device), _hamiltonian(device)
    state = torch.zeros(6, dtype=torch.complex64, device=device)
    state[0] = 1.0

    def step(amplitude):
        generator = -1j * 0.05 * (free + amplitude * coupling)
        moved = torch.linalg.matrix_exp(generator) @ state  # <- sync-d2h-copy
        state.copy_(moved / torch.linalg.vector_norm(moved))
        return state.abs().square()

    return step, (torch.full((), 0.3, device=device),)
