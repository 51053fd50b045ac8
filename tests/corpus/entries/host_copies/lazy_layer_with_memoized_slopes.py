import torch
from torch import nn


class Slopes:
    """ALiBi: slopes are computed for the first call."""

    def __init__(self):
        self.known = {}

    def __call__(self, heads, length, device):
        if (heads, length) not in self.known:
            slopes = [2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)]
            distance = torch.arange(length).view(1, -1) - torch.arange(length).view(-1, 1)
            bias = torch.tensor(slopes).view(-1, 1, 1) * distance.abs().neg()
            self.known[heads, length] = bias.to(device)
        return self.known[heads, length]


def lazy_layer_with_memoized_slopes(device):
    slopes = Slopes()
    project = nn.LazyLinear(16).to(device)

    def attend(x):
        q = project(x).unflatten(-1, (4, 4)).transpose(1, 2)
        scores = q @ q.transpose(-1, -2) * 0.5 + slopes(4, x.shape[1], x.device)
        return (scores.softmax(-1) @ q).transpose(1, 2).flatten(-2)

    return attend, (torch.randn(2, 6, 8, device=device),)
