"""Numbers that the host draws in a capture, from generators that the captured code seeds."""

import random

import torch

x = torch.ones(4, device="cuda")
generator = torch.Generator()


def scaled(x):
    random.seed(3)
    return x * random.random()


def of_its_own(x):
    return x * random.Random(3).random()


def accepted(x):
    generator.manual_seed(3)
    threshold = torch.rand((), generator=generator).log()
    return x.log() > threshold


for function in (scaled, of_its_own, accepted):
    function(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)
    for _ in range(2):
        x.fill_(0.5)
        graph.replay()
        print(y.sum().item())
