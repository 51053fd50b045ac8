import torch


def _laplacian(field):
    shifted = [field.roll(shift, dim) for shift in (1, -1) for dim in (0, 1)]
    return sum(shifted) - 4 * field


class Diffusion:
    """Two fields: one is read, the other is written, and they change places."""

    def __init__(self, device):
        self.now, self.next = (torch.rand(8, 8, device=device) for _ in range(2))

    def advance(self):
        self.next.copy_(self.now + 0.1 * _laplacian(self.now))
        self.now, self.next = self.next, self.now


class Relaxation(Diffusion):
    def advance(self):
        self.next.copy_(self.now + 0.1 * _laplacian(self.now))
        self.now, self.next = self.next, self.now


def heat_swapped_an_even_number_of_times(device):
    """After four steps, both names are where they were."""
    heat = Relaxation(device)

    def step():
        for _ in range(4):
            heat.advance()
        return heat.now.mean(0)

    return step
