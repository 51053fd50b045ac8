import itertools

import torch


class VerletList:
    """Neighbours are found again every twentieth step, and used in between."""

    def __init__(self, device, every=20):
        self.x = torch.rand(8, 2, device=device)
        self.v = torch.zeros(8, 2, device=device)
        self.near = torch.zeros(8, 8, dtype=torch.bool, device=device)
        self.every, self.age = every, itertools.count()

    def _refresh(self):
        self.near.copy_(torch.cdist(self.x, self.x) < 0.5)  # <- control-flow-frozen

    def __call__(self, force):
        if not next(self.age) % self.every:  # <- control-flow-frozen
            self._refresh()  # <- control-flow-frozen
        pull = torch.where(self.near[..., None], self.x[:, None] - self.x, 0.0).sum(1)
        self.v.add_(force - pull, alpha=0.01)
        self.x.add_(self.v, alpha=0.01)
        return self.x.clone()


def neighbours_of_every_twentieth_step(device):
    return VerletList(device), (torch.randn(8, 2, device=device),)
