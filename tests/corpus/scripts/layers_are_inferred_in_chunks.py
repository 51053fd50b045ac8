"""Inference of a large graph: each layer has its CUDA graph for a chunk of nodes."""

import torch
from torch import nn

NODES, NEIGHBORS, CHUNK = 50, 6, 16


class Layer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.other = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, hidden, nodes, neighbors):
        return self.own(hidden[nodes]) + self.other(hidden[neighbors].mean(1))


torch.manual_seed(9)
layers = nn.ModuleList([Layer(12, 24), Layer(24, 24), Layer(24, 4)]).cuda().requires_grad_(False)
table = torch.randint(0, NODES, (NODES, NEIGHBORS), device="cuda")
hidden = [torch.randn(NODES + 1, width, device="cuda") for width in (12, 24, 24, 4)]
nodes = torch.zeros(CHUNK, dtype=torch.int64, device="cuda")
padding = torch.full((1, NEIGHBORS), NODES, dtype=torch.int64, device="cuda")
table = torch.cat([table, padding])


def chunk_of(number):
    answer = layers[number](hidden[number], nodes, table[nodes])
    hidden[number + 1].index_copy_(0, nodes, answer.relu() if number < 2 else answer)


graphs = []
for number in range(3):
    nodes.copy_(torch.arange(CHUNK))
    chunk_of(number)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chunk_of(number)
    graphs.append(graph)

for _ in range(2):
    hidden[0].normal_()
    for graph in graphs:
        for part in torch.arange(NODES, device="cuda").split(CHUNK):
            nodes.fill_(NODES)
            nodes[: len(part)] = part
            graph.replay()
    print(hidden[-1][:NODES].argmax(-1).bincount(minlength=4).tolist())
