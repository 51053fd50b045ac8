"""A dict of settings is changed, and passed again, for each graph."""

import torch

x = torch.ones(4, device="cuda")
settings = {"scale": 1.0}
graphs = {}


def capture(settings):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * settings["scale"]
    return graph, y


for scale in (1.0, 2.0):
    settings["scale"] = scale
    graphs[scale] = capture(settings)
for graph, y in graphs.values():
    graph.replay()
    print(y.sum().item())
