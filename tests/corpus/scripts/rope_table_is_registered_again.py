"""The rotary table is computed again for longer contexts, as a new buffer."""

import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        self.dim = dim
        self.build(length)

    def build(self, length, base=10000.0):
        inverse = 1.0 / base ** (torch.arange(0, self.dim, 2, device="cuda") / self.dim)
        angles = torch.arange(length, device="cuda")[:, None] * inverse
        self.register_buffer("cos", angles.cos(), persistent=False)  # guilty: a new table
        self.register_buffer("sin", angles.sin(), persistent=False)  # guilty: a new table

    def forward(self, x, position):
        cos, sin = self.cos[position], self.sin[position]
        even, odd = x.chunk(2, -1)
        return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)


rotary = Rotary(8, 16)
q = torch.ones(2, 8, device="cuda")
position = torch.zeros(2, dtype=torch.long, device="cuda")
rotary(q, position)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    rotated = rotary(q, position)
for context in (8, 16, 64):
    if context > rotary.cos.shape[0]:
        rotary.build(context, base=40000.0)
    position.fill_(min(context, 16) - 1)
    graph.replay()
    print(context, rotated.sum().item())
