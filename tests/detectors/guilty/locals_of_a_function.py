"""Locals of the function that captures: a number and a flag."""

import torch


def main():
    scale, shifted = 2.0, True
    x = torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * scale
        if shifted:
            y = y + 1
    scale = 3.0  # <- python-scalar-frozen
    graph.replay()
    print(scale)
    shifted = False  # <- control-flow-frozen
    graph.replay()
    print(y.tolist())


main()
