"""Expressions take several results of one graph, which are one buffer."""

import functools

import torch
from torch.nn import functional

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2

run = lambda value: (x.fill_(value), graph.replay(), y)[2]  # noqa: E731
cosine = functional.cosine_similarity


def total(result):
    return result.sum().item()


def head(pair):
    return total(pair[0])


def margin(a, b):
    return a.sum().item() - 0.5 * b.sum().item()


def damped(a, b):
    return a * 0.5 + b


def best_of(values):
    return max((run(value) for value in values), key=total)  # <- output-overwritten-by-next-replay


def all_of(values):
    return [run(value) for value in values]  # <- output-overwritten-by-next-replay


print(torch.cosine_similarity(run(1), run(2), dim=0).item())  # <- output-overwritten-by-next-replay
print(cosine(x1=run(1)[None], x2=run(2)[None]).item())  # <- output-overwritten-by-next-replay
print(torch.einsum("i,j->ij", run(1), run(2)).tolist())  # <- output-overwritten-by-next-replay
loss = functional.cross_entropy(run(1), run(2).softmax(0))  # <- output-overwritten-by-next-replay
print(loss.item(), best_of((1, 3, 2)).tolist())
print(margin(run(1), run(2)))  # <- output-overwritten-by-next-replay
print(min([run(1), run(2)], key=total).tolist())  # <- output-overwritten-by-next-replay
print(torch.cat([run(1), run(2)]).tolist())  # <- output-overwritten-by-next-replay

best = max(map(run, (1, 3, 2)), key=total)  # <- output-overwritten-by-next-replay
print(best.tolist())
print(max((run(each) for each in (1, 3)), key=total))  # <- output-overwritten-by-next-replay
best, value = max(((run(v), v) for v in (3, 1)), key=head)  # <- output-overwritten-by-next-replay
print(best.tolist(), value)
summed = functools.reduce(torch.add, map(run, (1, 2)))  # <- output-overwritten-by-next-replay
print(functools.reduce(damped, map(run, (1, 2))).tolist())  # <- output-overwritten-by-next-replay
for each in sorted(map(run, (1, 3, 2)), key=total):  # <- output-overwritten-by-next-replay
    print(each.tolist())
for value, result in zip((1, 2), all_of((1, 2)), strict=True):
    print(value, result.tolist())
first, second = [run(value) for value in (1, 2)]  # <- output-overwritten-by-next-replay
print(first.tolist(), second.tolist())

first = run(1)  # <- output-overwritten-by-next-replay
second = run(2)  # <- output-overwritten-by-next-replay
third = run(3)
print(torch.stack([first, second, third]).tolist())
