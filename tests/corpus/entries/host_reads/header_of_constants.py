from __future__ import annotations

import struct

import torch
from torch import nn


def _layer_and_input(device):
    return nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)


# A header that is only read.
def header_of_constants(device):
    layer, x = _layer_and_input(device)
    header = struct.pack("<qd", 3, 0.5)

    def forward(x):
        power, scale = struct.unpack("<qd", header)
        return layer(x).pow(power) * scale

    return forward, (x,)
