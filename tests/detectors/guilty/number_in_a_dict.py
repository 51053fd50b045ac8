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
graph, y = capture(lambda: x / settings["temperature"])
settings["temperature"] = 4.0  # <- python-scalar-frozen
graph.replay()
print(y.tolist())
