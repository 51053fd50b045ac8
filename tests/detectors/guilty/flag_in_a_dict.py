"""A flag that a conditional expression reads."""

import torch


def capture(function):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()
    return graph, out


flag = {"on": True}
x = torch.ones(1, device="cuda")
graph, y = capture(lambda: x + 1 if flag["on"] else x - 1)
flag["on"] = False  # <- control-flow-frozen
graph.replay()
print(y.tolist())
