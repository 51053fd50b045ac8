import torch
from torch import distributions as dist
from torch.nn import functional


def headings_of_von_mises(device):
    def f(features):
        loc, spread = features.unbind(-1)
        heading = dist.VonMises(loc, functional.softplus(spread) + 0.1, validate_args=False)
        # Rejection sampling: `while not done.all()`.
        angle = heading.sample()  # <- hidden-sync-in-stock-module
        return angle, heading.log_prob(angle)

    return f, (torch.randn(16, 2, device=device),)
