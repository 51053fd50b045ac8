"""A helper captures with an input that nobody keeps."""

import torch


def make():
    x = torch.ones(1 << 20, device="cuda")
    x.sum()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x.sum()  # <- input-freed-before-replay
    return graph, y


graph, y = make()
other = torch.zeros(1 << 20, device="cuda")
graph.replay()  # <- input-freed-before-replay
print(y.item())  # eager: 1048576.0
