"""A closure's tensor dies with the function that made it."""

import torch


def make():
    bias = torch.ones(8, device="cuda")

    def function():
        return bias + 1  # <- input-freed-before-replay

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()
    return graph, out


graph, out = make()
graph.replay()
print(out.tolist())
