"""Activations get fewer bits after calibration; the number of levels is an enum."""

import enum

import torch
from torch import nn


class Bits(enum.IntEnum):
    INT8 = 8
    INT4 = 4

    @property
    def levels(self):
        return 2 ** (self - 1) - 1


class Quantizer(nn.Module):
    def __init__(self, bits):
        super().__init__()
        self.bits = bits

    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / self.bits.levels
        return (x / scale).round() * scale


def set_bits(model, bits):
    for module in model.modules():
        if isinstance(module, Quantizer):
            module.bits = bits  # guilty: the captured kernels keep the old levels


torch.manual_seed(0)
model = nn.Sequential(Quantizer(Bits.INT8), nn.Linear(8, 16), nn.ReLU(), Quantizer(Bits.INT8),
                      nn.Linear(16, 4)).cuda().requires_grad_(False)  # fmt: skip
x = torch.randn(32, 8, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        model(x)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)
errors = {}
for bits in Bits:
    set_bits(model, bits)
    x.normal_()
    graph.replay()
    errors[bits.name] = y.square().mean().item()
print(errors)
