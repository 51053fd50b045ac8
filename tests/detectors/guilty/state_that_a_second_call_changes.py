"""Captured code changes what it reads, and few calls differ in it: a second call changes it too."""

import collections
import math
import weakref
from typing import ClassVar

import torch

x = torch.randn(4, 8, device="cuda")
weights = torch.randn(8, 8, device="cuda")
plan = collections.deque([1.0] * 500 + [0.5] * 500)
sizes = [2 + number % 2 for number in range(900)]
losses = []


class Shared:
    """All instances have one state."""

    _state: ClassVar = {}

    def __init__(self):
        self.__dict__ = self._state

    @property
    def is_due(self):
        return self.seen % 16 == 0


class Recorder:
    def __init__(self, owner):
        self.owner = weakref.proxy(owner)

    def weight(self):
        return 0.1 + 0.9 * (self.owner.finished / 10_000)


class Trainer:
    def __init__(self):
        self.finished, self.recorder = 0, Recorder(self)

    def step(self, x):
        y = x * self.recorder.weight()
        self.finished += 1  # <- cpu-state-step-counter
        return y


class Masks:
    def __init__(self):
        self.number = 0

    def __call__(self, x):
        self.number += 1
        generator = torch.Generator()
        generator.manual_seed(self.number // 400)
        top = int(torch.randint(0, 3, (1,), generator=generator))  # <- rng-frozen-seed
        return x[top : top + 2] * 2


def planned(x):
    plan.rotate(-1)  # <- python-side-effects-skipped
    return x * plan[0]


def shrinking(x):
    return x[: sizes.pop() // 2] * 2  # <- python-side-effects-skipped


@torch.no_grad()
def compared_with_an_old_loss(x):
    losses.append((x @ weights).square().mean())  # <- python-side-effects-skipped
    return losses[-1] - losses[max(0, len(losses) - 10)]


def due(x):
    state = Shared()
    state.seen += 1
    if shared.is_due:  # <- control-flow-frozen
        return x * 2
    return x + 1


def falling(x):
    rate.step += 1  # <- cpu-state-step-counter
    scale = (1 + math.cos(rate.step / 100_000)) / 2
    return x + scale


shared = Shared()
shared.seen = 0
rate, trainer, masks = torch.nn.Module(), Trainer(), Masks()
rate.step = 0
pairs = []
planned(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = planned(x)
pairs.append((graph, y))
shrinking(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = shrinking(x)
pairs.append((graph, y))
compared_with_an_old_loss(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = compared_with_an_old_loss(x)
pairs.append((graph, y))
due(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = due(x)
pairs.append((graph, y))
trainer.step(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = trainer.step(x)
pairs.append((graph, y))
masks(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = masks(x)
pairs.append((graph, y))
falling(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = falling(x)
pairs.append((graph, y))
for _ in range(3):
    x.normal_()
    for graph, _ in pairs:
        graph.replay()
print([y.sum().item() for _, y in pairs])
