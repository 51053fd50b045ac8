"""LoRA adapters are swapped by copying them into the slot that the graph reads."""

# The strength is part of the slot, as a tensor; `copy_` and `fill_` keep the addresses.

import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class Adapter:
    name: str
    down: torch.Tensor
    up: torch.Tensor
    strength: float = 1.0


class Slot(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.register_buffer("down", torch.zeros(rank, width))
        self.register_buffer("up", torch.zeros(width, rank))
        self.register_buffer("strength", torch.zeros(()))
        self.active = None

    def load(self, adapter):
        self.down.copy_(adapter.down)
        self.up.copy_(adapter.up)
        self.strength.fill_(adapter.strength)
        self.active = adapter.name

    def forward(self, x):
        return self.base(x) + (x @ self.down.t() @ self.up.t()) * self.strength


slot = Slot(4, 2).cuda().eval()
x = torch.zeros(2, 4, device="cuda")
with torch.no_grad():
    slot(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = slot(x)
    for i, strength in enumerate((1.0, 0.5)):
        slot.load(Adapter(f"a{i}", torch.randn(2, 4), torch.randn(4, 2), strength))
        x.fill_(1.0)
        graph.replay()
        print(slot.active, y.sum().item())
