from __future__ import annotations

import torch
from torch import nn


def frames_are_stacked_by_a_tuple(device):
    """An Atari actor: the last four frames are a tuple, from which the oldest falls out."""
    net = nn.Sequential(nn.Conv2d(4, 2, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).to(device)
    net(torch.zeros(1, 4, 8, 8, device=device))
    net.requires_grad_(False)
    frames = tuple(torch.zeros(8, 8, device=device) for _ in range(4))

    def act(frame):
        nonlocal frames
        _oldest, *rest = frames
        frames = (*rest, frame.clone())  # <- metadata-address-changed
        return net(torch.stack(frames).unsqueeze(0)).argmax(-1)  # <- metadata-address-changed

    return act, (torch.rand(8, 8, device=device),)
