"""Names of functions in captured lines are given to others, for the next graphs."""

import torch

x = torch.linspace(-1, 1, 8, device="cuda")


def step(x):
    return x * 2


first = torch.cuda.CUDAGraph()
with torch.cuda.graph(first):
    y = step(x)


def step(x):
    return torch.relu(x)


second = torch.cuda.CUDAGraph()
with torch.cuda.graph(second):
    z = step(x)

graphs = {}
for kind in ("sum", "mean", "amax"):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        reduced = getattr(x, kind)()
    graphs[kind] = graph, reduced


def captured(function):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(x)
    return graph, result


activations = [captured(function) for function in (torch.tanh, torch.relu, torch.sigmoid)]
for _ in range(3):
    x.uniform_(-1, 1)
    first.replay()
    second.replay()
    print(y.sum().item(), z.sum().item())
    for graph, result in (*graphs.values(), *activations):
        graph.replay()
        print(result.sum().item())
