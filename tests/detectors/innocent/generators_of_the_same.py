"""What the captured code takes from generators is the same each time, whether they have begun or
not."""

import itertools

import torch


def forever(buffer):
    while True:
        yield buffer


def doubles():
    answer = None
    while True:
        value = yield answer
        answer = value * 2


def averages(state):
    answer = None
    while True:
        value = yield answer
        state.mul_(0.9).add_(value)
        answer = state.clone()


def delegates(buffer):
    yield from forever(buffer)


x, buffer = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
warm, fresh, inner = forever(buffer), forever(buffer), delegates(buffer)
pairs = zip(forever(buffer), map(torch.neg, forever(x)), strict=True)
turns = itertools.cycle((buffer,))
doubled, average = doubles(), averages(torch.zeros(4, device="cuda"))
next(doubled), next(average)


def step():
    first, second = next(pairs)
    return average.send(doubled.send(x) + next(warm) + next(inner) + first + second + next(turns))


step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = step() + next(fresh)
for _ in range(3):
    graph.replay()
    print(y.sum().item())
