"""Molecules of different sizes go through one CUDA graph."""

import random

import torch
from torch import nn

NODES, EDGES = 12, 40


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 16)
        self.message = nn.Linear(16, 16)
        self.update = nn.GRUCell(16, 16)
        self.readout = nn.Linear(16, 1)

    def forward(self, x, edges):
        hidden = self.encode(x).relu()
        for _ in range(2):
            messages = self.message(hidden)[edges[0]]
            hidden = self.update(torch.zeros_like(hidden).index_add_(0, edges[1], messages), hidden)
        return self.readout(hidden).sum()


def molecules(count):
    for _ in range(count):
        edges = random.randint(20, EDGES)
        yield torch.randn(NODES, 4), torch.randint(0, NODES, (2, edges))


network = Network().cuda().eval()
x = torch.zeros(NODES, 4, device="cuda")
edges = torch.zeros(2, EDGES, dtype=torch.long, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.no_grad():
    for _ in range(2):
        network(x, edges)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        energy = network(x, edges)

    for atoms, bonds in molecules(6):
        x.copy_(atoms)
        edges[:, : bonds.shape[1]].copy_(bonds)  # <- bucket-padding-garbage
        graph.replay()
        print(bonds.shape[1], energy.item())
