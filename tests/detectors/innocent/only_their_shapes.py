"""Tensors of which captured code takes the shape alone may be freed, bound again, or others."""

import itertools

import torch

weight = torch.randn(3, device="cuda")


def captured(function):
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()
    return graph, out


def freed():
    template = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        noise = torch.randn_like(template) + torch.randint_like(template, 3) + template.new_ones(3)
        out = (noise * weight).sum()
    return graph, out


template = torch.zeros(3, device="cuda")
templates = itertools.cycle([torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")])


def bound_again():
    return torch.zeros_like(template) + weight


def of_an_iterator():
    return torch.full_like(next(templates), 2.0) * weight


pairs = [freed(), captured(bound_again), captured(of_an_iterator)]
template = torch.ones(3, device="cuda")
for _ in range(3):
    for graph, _ in pairs:
        graph.replay()
print([out.sum().item() for _, out in pairs])
