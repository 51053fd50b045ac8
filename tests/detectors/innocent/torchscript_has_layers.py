"""Modules of TorchScript, whose layers a C++ object holds, run in a capture."""

import torch
from torch import nn


def captured(model, x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    return graph, y


x = torch.randn(4, 8, device="cuda")
layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).cuda().eval()
with torch.no_grad():
    pairs = [captured(torch.jit.script(layers), x), captured(torch.jit.trace(layers, x), x)]
    for _ in range(3):
        x.copy_(torch.randn(4, 8, device="cuda"))
        for graph, y in pairs:
            graph.replay()
            print(torch.equal(y, layers(x)))
