"""The captured code reads a property or a method of an object that is exchanged."""

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


class Curve(enum.Enum):
    FLAT = 1.0
    STEEP = 4.0

    def slope(self):
        return self.value


@dataclasses.dataclass(frozen=True)
class Window:
    size: int
    overlap: int = 0

    @property
    def hop(self):
        return self.size - self.overlap


class Schedule:
    def __init__(self, window, rate):
        self.window, self.rate = window, rate

    def scale(self):
        return self.rate * self.window.hop


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.bits, self.curve = Bits.INT8, Curve.FLAT
        self.schedule = Schedule(Window(4), 0.5)

    def forward(self, x):
        x = (x * self.bits.levels).round() / self.bits.levels
        if self.curve.slope() > 2:
            x = x.square()
        return x * self.schedule.scale()


def captured(layer):
    layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    graph.replay()
    print(y.sum().item())
    return graph, y


x = torch.ones(4, device="cuda")
first, second, third, fourth = Layer(), Layer(), Layer(), Layer()

graph, y = captured(nn.Sequential(third, first))
first.bits = Bits.INT4  # <- python-scalar-frozen
graph.replay()

graph, y = captured(second)
second.curve = Curve.STEEP  # <- control-flow-frozen
graph.replay()

graph, y = captured(fourth)
fourth.schedule = Schedule(Window(4), 0.25)  # <- python-scalar-frozen
graph.replay()
fourth.schedule.window = Window(4, 2)  # <- python-scalar-frozen
graph.replay()
