"""An object with properties is exchanged for another one that gives the same number, where no
captured code reads it, or before another capture."""

import dataclasses
import enum

import torch
from torch import nn


class Bits(enum.IntEnum):
    INT8 = 8
    INT4 = 4

    @property
    def levels(self):
        return 2 ** (self - 1) - 1


@dataclasses.dataclass(frozen=True)
class Window:
    size: int
    name: str = ""

    @property
    def hop(self):
        return self.size // 2


class Layer(nn.Module):
    def __init__(self, bits=Bits.INT8):
        super().__init__()
        self.bits, self.window = bits, Window(4, "hann")
        self.shown = self.bits

    def forward(self, x):
        return (x * self.bits.levels).round() * self.window.hop


def captured(layer):
    layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    return graph, y


x = torch.ones(4, device="cuda")
layer, other = Layer(), Layer()
graph, y = captured(layer)
graph.replay()
layer.window = Window(4, "boxcar")
layer.shown = Bits.INT4
other.bits = Bits.INT4
graph.replay()
print(y.sum().item(), other(x).sum().item())

# Put back before the replay.
layer.bits = Bits.INT4
print(layer(x).sum().item())
layer.bits = Bits.INT8
graph.replay()

# A graph for each.
graphs = {}
for bits in Bits:
    layer.bits = bits
    graphs[bits] = captured(layer)
for bits in (Bits.INT8, Bits.INT4, Bits.INT8):
    layer.bits = bits
    graphs[bits][0].replay()
    print(graphs[bits][1].sum().item())
