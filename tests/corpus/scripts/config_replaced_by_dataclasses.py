"""The settings of an adapter are frozen dataclasses; a request replaces them."""

# `adapter.config.strength` is a Python float when `mul` is captured: a kernel argument.

import dataclasses

import torch
from torch import nn


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    rank: int = 2
    strength: float = 1.0


class Adapter(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.base = nn.Linear(4, 4)
        self.down = nn.Linear(4, config.rank, bias=False)
        self.up = nn.Linear(config.rank, 4, bias=False)

    def forward(self, x):
        return (
            self.base(x) + self.up(self.down(x)) * self.config.strength
        )  # guilty: the strength of the capture


adapter = Adapter(AdapterConfig()).cuda().eval()
x = torch.zeros(2, 4, device="cuda")

with torch.no_grad():
    adapter(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = adapter(x)

for strength in (1.0, 0.5):
    adapter.config = dataclasses.replace(
        adapter.config, strength=strength
    )  # guilty: replays do not see it
    x.fill_(1.0)
    graph.replay()
    print(y.sum().item())
