"""The input of a function's graph is rebound in its loop."""

import torch


def main(batches):
    x = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    total = torch.zeros(4, device="cuda")
    for x in batches:  # <- input-rebound-not-copied
        graph.replay()
        total += y * x.shape[0]
    print(total.tolist())


main([torch.full((4,), float(value), device="cuda") for value in range(3)])
