"""Expressions replay a graph several times, and take each result before the next replay, or a copy,
or only the last one."""

import functools

import torch
from torch.nn import functional

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


def run(value):
    x.fill_(value)
    graph.replay()
    return y


def perhaps_copied(value, copy=False):
    return run(value).clone() if copy else run(value)


def total(value):
    return run(value).sum().item()


def compare(a, b):
    print(a, b, y.tolist())


def lazy(values):
    return (run(value) for value in values)


def all_of(values):
    return [run(value) for value in values]


print(functional.kl_div(run(1).log_softmax(0), run(2).softmax(0), reduction="sum").item())
print((0.3 * run(1) + 0.7 * run(2)).tolist(), torch.dist(run(1) * 1, run(2)).item())
print(torch.dist(perhaps_copied(1, copy=True), perhaps_copied(2)).item())
print(torch.cosine_similarity(run(1).clone(), run(2), dim=0).item())
print(run(1).shape, run(2), f"{run(1)} {run(2)}")
compare(total(1), total(2))
print(total(1), total(2), y)
print(max(map(total, (1, 3, 2))), y)

print(sum(map(run, (1, 2, 3))).tolist(), sum(run(value) for value in (1, 2)).tolist())
print(functools.reduce(torch.add, map(run, (1, 2)), torch.zeros(4, device="cuda")).tolist())
print(functools.reduce(lambda a, value: a + run(value), (1, 2), torch.zeros_like(y)).tolist())
print(max((run(value).clone() for value in (1, 3, 2)), key=lambda each: each.sum().item()).tolist())
best = max((1, 3, 2), key=total)
print(best, run(best).tolist(), max(map(total, (1, 3, 2))), y.tolist())
for value, result in zip((1, 2), map(run, (1, 2)), strict=True):
    print(value, result.tolist())
for result in lazy((1, 2)):
    print(result.tolist())
print([result.tolist() for result in (run(value) for value in (1, 2))])

all_of((1, 2, 3))  # warm-up
last = all_of((1, 2))[-1]
print(last.tolist(), all_of((3, 4))[-1].tolist())
*_, last = [run(value) for value in (1, 2)]
print(last.tolist())
total_of_all = torch.zeros(4, device="cuda")
print((total_of_all + run(1) + run(2)).tolist(), total_of_all.add(run(3)).add(run(4)).tolist())
weight = torch.eye(4, device="cuda")
print(torch.dist(weight @ run(1), weight @ run(2)).item())
