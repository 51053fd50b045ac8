from __future__ import annotations

import torch


def _hamiltonian(device, levels=6):
    mixed = torch.randn(levels, levels, dtype=torch.complex64)
    return ((mixed + mixed.mH) / 2).to(device)


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
