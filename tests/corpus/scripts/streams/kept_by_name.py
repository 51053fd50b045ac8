"""Outputs have other names, and what is read is of the last replay, or a copy."""

import torch

x = torch.zeros(4, device="cuda")
graphs = {}
for size in (2, 4):
    x[:size].sum()
    graphs[size] = torch.cuda.CUDAGraph(), torch.empty(size, device="cuda")
    with torch.cuda.graph(graphs[size][0]):
        y = x[:size] * 2
    graphs[size] = graphs[size][0], y


def of_each_size(sizes):
    for size in sizes:
        x.fill_(float(size))
        if size in graphs:
            graph, static = graphs[size]
            graph.replay()
            result = static
        else:
            result = x[:size] * 2
        print(result.sum().item())


def last_one(steps):
    graph, static = graphs[4]
    result = None
    for step in range(steps):
        graph.replay()
        if step == steps - 1:
            result = static
    return result.sum().item()


def copied(steps):
    graph, static = graphs[4]
    best = torch.zeros_like(static)
    for step in range(steps):
        x.fill_(float(-step))
        graph.replay()
        if static.sum().item() > best.sum().item() or step == 0:
            best = static.clone()
    return best.tolist()


def shown_now_and_then(steps):
    graph, static = graphs[4]
    for step in range(steps):
        graph.replay()
        if step % 2 == 0:
            shown = static
            print(shown.mean().item())


def until_done(steps):
    graph, static = graphs[2]
    answer = None
    for _ in range(steps):
        x.add_(1.0)
        graph.replay()
        if static.sum().item() > 4.0:
            answer = static
            break
    return answer.tolist()


def alias_of_each(steps):
    graph, static = graphs[4]
    total = torch.zeros(4, device="cuda")
    for _ in range(steps):
        graph.replay()
        result = static
        total += result
    return total.tolist()


def of_the_first_rank(steps, rank=0):
    graph, static = graphs[4]
    for step in range(steps):
        x.fill_(float(step))
        graph.replay()
        if rank == 0:
            logged = static
        if rank == 0:
            print(step, logged.sum().item())


class Stage:
    def __init__(self, out):
        self.out = out

    def read(self):
        return self.out.sum().item()


def bound_once(steps):
    graph, static = graphs[4]
    result = None
    for step in range(steps):
        x.fill_(float(step))
        graph.replay()
        if result is None:
            result = static
        print(result.sum().item())
    return static.tolist()


def read_by_stages(steps):
    graph, static = graphs[4]
    graph.replay()
    stages = Stage(static), Stage(static)
    late = Stage(static)
    for step in range(steps):
        x.fill_(float(step))
        graph.replay()
        print(late.read(), stages[0].read(), static.mean().item())


of_the_first_rank(3)
of_each_size([2, 4, 3, 2])
print(last_one(3), copied(3), alias_of_each(3))
shown_now_and_then(4)
print(until_done(9), bound_once(3))
read_by_stages(2)
