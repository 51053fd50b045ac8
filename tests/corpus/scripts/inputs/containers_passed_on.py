"""Containers of tensors have the name of a loop, and that of an argument of captured code."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not

cell = nn.LSTMCell(4, 4).cuda()


def zeros():
    return torch.zeros(1, 4, device="cuda")


def step(x, state):
    return cell(x, state)


def capture(function, *args):
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        result = function(*args)
    return graph, result


def two_sequences():
    """The name of the state is that of the next one, when its tensors have been copied."""
    x, state = torch.ones(1, 4, device="cuda"), (zeros(), zeros())
    static = state
    graph, new = capture(step, x, state)
    for _ in range(2):
        state = (torch.ones(1, 4, device="cuda"), zeros())
        for _ in range(3):
            for mine, given in zip(static, state, strict=True):
                mine.copy_(given)
            graph.replay()
            state = tuple(each.clone() for each in new)
    return state


def sizes():
    """Each size has a graph, whose batch is kept."""
    graphs = {}
    for size in (1, 2):
        batch = {"x": torch.ones(size, 4, device="cuda"), "state": (zeros(), zeros())}
        batch["state"] = tuple(each.expand(size, 4).clone() for each in batch["state"])
        graph, new = capture(lambda batch: step(batch["x"], batch["state"]), batch)
        graphs[size] = graph, batch, new
    for size in (1, 2, 1):
        graph, batch, new = graphs[size]
        batch["x"].fill_(float(size))
        graph.replay()
        print(size, new[0].sum().item())


two_sequences()
sizes()
