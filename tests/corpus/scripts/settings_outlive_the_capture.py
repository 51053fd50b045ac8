"""A function that captures returns its dict of settings, too; one of them is changed later."""

import torch


def capture(x):
    settings = {"scale": 1.0, "shape": {"rows": 2}}
    x * settings["scale"]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x[: settings["shape"]["rows"]] * settings["scale"]  # guilty: the same
    return graph, y, settings


x = torch.ones(4, device="cuda")
graph, y, settings = capture(x)
settings["scale"] = 3.0  # guilty: the graph has the scale of the capture
graph.replay()
print(y.sum().item())  # eager: 6.0
