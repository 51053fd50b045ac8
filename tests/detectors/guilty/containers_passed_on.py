"""Containers of tensors have the name of a loop, and that of an argument of captured code."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(4, 4) for _ in range(2))

    def forward(self, x, states):
        new = []
        for cell, state in zip(self.cells, states, strict=True):
            state = cell(x, state)
            x = state[0]
            new.append(state)
        return x, tuple(new)


def zeros():
    return torch.zeros(1, 4, device="cuda")


def look_up(rows, key):
    return rows[key] * 2


def capture(function, *args):
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        result = function(*args)
    return graph, result


def decode(model):
    x, states = torch.ones(1, 4, device="cuda"), tuple((zeros(), zeros()) for _ in range(2))
    graph, (y, new) = capture(model, x, states)
    for _ in range(3):
        graph.replay()
        states = new  # <- metadata-address-changed
    return y


def read(batches):
    rows = {"a": zeros()}
    graph, y = capture(look_up, rows, "a")
    for batch in batches:
        rows = {"a": batch}  # <- metadata-address-changed
        graph.replay()
    return y


decode(Decoder().cuda())
read([torch.ones(1, 4, device="cuda") for _ in range(2)])
