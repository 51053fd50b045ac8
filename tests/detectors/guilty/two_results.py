"""A function returns the output itself, and two of its results have names at the same time."""

from dataclasses import dataclass

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


def run(value):
    x.fill_(value)
    graph.replay()
    return y  # <- output-overwritten-by-next-replay


def run_for_pairs(value):
    x.fill_(value)
    graph.replay()
    return y  # <- output-overwritten-by-next-replay


def run_for_each(value):
    x.fill_(value)
    graph.replay()
    return y  # <- output-overwritten-by-next-replay


def run_for_fields(value):
    x.fill_(value)
    graph.replay()
    return y.detach()  # <- output-overwritten-by-next-replay


def run_for_ops(value):
    x.fill_(value)
    graph.replay()
    return y[:2]  # <- output-overwritten-by-next-replay


def value_of(state):
    x.fill_(state)
    graph.replay()
    return y  # <- output-overwritten-by-next-replay


class Engine:
    def __init__(self):
        self.given = torch.zeros(4, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.given + 1

    def __call__(self, value):
        self.given.fill_(value)
        self.graph.replay()
        return self.out.view(2, 2)  # <- output-overwritten-by-next-replay


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


def guided(value):
    conditional = run(value)
    unconditional = run(0.0)
    return torch.lerp(unconditional, conditional, 7.5).sum().item()


def far_apart(new, old):
    return torch.dist(new, old).item()


def each(values):
    for value in values:
        yield run_for_each(value)


print(guided(1.0))
first = run(1.0)
second = run(2.0)
print(far_apart(old=first, new=second))

for state in (1.0, 2.0):
    current = value_of(state)
    target = value_of(state + 1.0) * 0.99 + 1.0
    print((target - current).tolist())

engine = Engine()
pair = Pair(left=engine(1.0), right=None)
pair.right = engine(2.0)
print(pair.left.sum().item(), pair.right.sum().item())

a, b = run_for_pairs(1.0), run_for_pairs(2.0)
print(a.tolist(), b.tolist())
c, d, e = each((1.0, 2.0, 3.0))
print(c.sum().item() + d.sum().item() + e.sum().item())
both = Pair(
    left=run_for_fields(3.0),
    right=run_for_fields(4.0),
)
print(both.left.sum().item(), both.right.sum().item())
print(torch.atan2(run_for_ops(1.0), run_for_ops(2.0)).tolist())
x.fill_(1.0)
graph.replay()
f = y  # <- output-overwritten-by-next-replay
x.fill_(2.0)
graph.replay()
print(torch.atan2(f, y).tolist())
