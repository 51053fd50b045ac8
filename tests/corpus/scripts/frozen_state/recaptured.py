"""The value changes and the graph is captured again."""

import torch

x = torch.ones(4, device="cuda")
settings = {"scale": 1.0}


def build():
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x * settings["scale"]
    return g, y


g, y = build()
g.replay()
print(y.tolist())
settings["scale"] = 2.0
g, y = build()
g.replay()
print(y.tolist())
