"""Numbers that the host draws in a capture, from the generators of Python and PyTorch."""

import random

import torch

x = torch.ones(4, device="cuda")


def scaled(x):
    return x * random.random()  # <- rng-frozen-seed


def accepted(x):
    threshold = torch.rand(()).log()  # <- rng-frozen-seed
    return x.log() > threshold


for function in (scaled, accepted):
    function(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)
    for _ in range(3):
        x.fill_(0.5)
        graph.replay()
        print(y.sum().item())
