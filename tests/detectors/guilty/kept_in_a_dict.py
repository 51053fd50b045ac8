"""Outputs by step, in a dict: all are one buffer."""

import torch


def main():
    x = torch.zeros(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = x + 1
    history = {}
    for step in range(3):
        x.fill_(step)
        graph.replay()
        history[step] = out  # <- output-overwritten-by-next-replay
    print([value.tolist() for value in history.values()])


main()
