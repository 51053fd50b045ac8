"""The captured lines call a function by a name that is given to another one afterwards."""

import functools

import torch

x = torch.linspace(-1, 1, 8, device="cuda")

activation = torch.tanh
first = torch.cuda.CUDAGraph()
with torch.cuda.graph(first):
    y = activation(x)  # <- control-flow-frozen


def run():
    scale, kind = (lambda t: t * 2), "sum"
    graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graphs[0]):
        scaled = scale(x)  # <- python-scalar-frozen
    with torch.cuda.graph(graphs[1]):
        reduced = getattr(x, kind)()  # <- control-flow-frozen
    for _ in range(3):
        x.uniform_()
        for graph in graphs:
            graph.replay()
        print(scaled.sum().item(), reduced.item())
        scale, kind = functools.partial(torch.mul, other=3), "mean"


for _ in range(3):
    first.replay()
    print(y.sum().item())
    activation = torch.relu
run()
