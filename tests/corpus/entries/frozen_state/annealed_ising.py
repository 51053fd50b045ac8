import torch


class Metropolis:
    def __init__(self, size, device):
        self.spins = (torch.rand(size, size, device=device) < 0.5).float() * 2 - 1
        row = torch.arange(size, device=device)
        self.even = (row[:, None] + row[None, :]) % 2 == 0
        self.beta = 0.1

    def half(self, mask):
        s = self.spins
        near = s.roll(1, 0) + s.roll(-1, 0) + s.roll(1, 1) + s.roll(-1, 1)
        cost = 2 * s * near
        accept = (
            torch.rand_like(s) < torch.exp(-self.beta * cost)
        ) & mask  # <- cpu-state-step-counter
        s.copy_(torch.where(accept, -s, s))

    def sweep(self):
        self.half(self.even)
        self.half(~self.even)
        self.beta = min(self.beta * 1.02, 1.0)  # <- cpu-state-step-counter
        return self.spins.mean(), torch.exp(
            -self.beta * self.spins.abs()
        ).mean()  # <- cpu-state-step-counter


def annealed_ising(device):
    torch.manual_seed(0)
    return Metropolis(8, device).sweep
