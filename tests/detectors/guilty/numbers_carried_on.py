"""Numbers that each call computes from those that the last one left; few calls differ in them."""

import itertools
import threading
from collections import defaultdict

import torch

x = torch.randn(4, 8, device="cuda")
rows = torch.zeros(8, 8, device="cuda")


class Ramp:
    def __init__(self):
        self._now = 0

    @property
    def now(self):
        return self._now

    @now.setter
    def now(ramp, value):  # noqa: N805
        ramp._now = value  # <- cpu-state-step-counter

    def __float__(self):
        return min(1.0, (self._now // 400) / 5)


class Clock:
    def __init__(self):
        self.time = 0

    def following(self):
        return self.time + 1

    def advance(self):
        self.time = self.following()  # <- cpu-state-step-counter
        return self.time // 300


ramp, clock = Ramp(), Clock()
counts, state = defaultdict(int), {"row": 0}
settings = {"train": {"steps": 0}}


def ramped(x):
    ramp.now = ramp.now + 1
    return x * float(ramp)


def clocked(x):
    return x * clock.advance()


def counted_by_key(x):
    counts[f"{x.dtype}:{x.shape[0]}"] += 1
    if max(counts.values()) > 800:  # <- control-flow-frozen
        return x * 2
    return x + 1


def next_row(x):
    at = state["row"]
    rows[at : at + 1] = x[:1]
    state["row"] = (at + 1) % 4  # <- cpu-state-step-counter
    return rows.sum()


def by_a_local_name(x):
    own = settings["train"]
    steps = own["steps"] + 1
    own["steps"] = steps  # <- cpu-state-step-counter
    return x * (1 + steps // 100)


def by_a_function_inside():
    calls = {"n": 0}

    def forward(x):
        def scale():
            calls["n"] += 1  # <- cpu-state-step-counter
            return calls["n"]

        return x * (2 if scale() > 900 else 1)

    return forward


def by_a_thread_inside():
    tokens = itertools.count()

    def forward(x):
        plan = {}

        def choose():
            plan["length"] = 2 if next(tokens) < 1_500 else 4

        thread = threading.Thread(target=choose)
        thread.start()
        thread.join()
        return x.topk(plan["length"]).indices  # <- python-scalar-frozen

    return forward


functions = [
    ramped, clocked, counted_by_key, next_row, by_a_local_name, by_a_function_inside(),
    by_a_thread_inside(),
]  # fmt: skip
graphs = []
for function in functions:
    for _ in range(4):
        function(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(x)
    graphs.append((graph, result))
for _ in range(3):
    x.copy_(torch.randn(4, 8))
    for graph, _ in graphs:
        graph.replay()
print([result.sum().item() for _, result in graphs])
