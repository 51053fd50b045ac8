"""A number in a dict that a captured lambda reads."""

import torch


def capture(function):
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()
    return graph, out


settings = {"temperature": 1.0}
x = torch.ones(2, device="cuda")
graph, y = capture(lambda: x / settings["temperature"])  # <- python-scalar-frozen
settings["temperature"] = 4.0
graph.replay()
print(y.tolist())
