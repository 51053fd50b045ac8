"""Graphs in a list, one for each layer, and a name that is bound again between them."""

import torch

hidden = torch.ones(2, device="cuda")
layers = []
for scale in (2.0, 3.0):
    hidden * scale
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hidden * scale  # guilty: reads the tensor of the capture
    layers.append((graph, out))

for graph, out in layers:
    graph.replay()  # guilty: the second one reads ones
    hidden = out.relu()  # guilty: another tensor
print(hidden.tolist())  # eager: [6.0, 6.0]
