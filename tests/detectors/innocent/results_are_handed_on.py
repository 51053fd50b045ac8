"""Names change places: what they have are copies, or is the newest result."""

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


def run(value):
    x.fill_(value)
    graph.replay()
    return y


def rotated(values):
    before, now = None, run(0.0).clone()
    for value in values:
        before, now = now, run(value).clone()
        print((now - before).tolist())


def only_tested(values):
    before = now = None
    for value in values:
        before, now = now, run(value)
        print(now.tolist(), before is not None)


def newest(values):
    result = run(0.0)
    for value in values:
        run(value)
        shown = result
        other = shown
        print(other.tolist(), shown.sum().item())


def fed_back(values):
    hidden = None
    for _ in values:
        if hidden is not None:
            x.copy_(hidden)
        graph.replay()
        out = y
        hidden = out
    print(hidden.tolist())


def averaged(values):
    state = torch.zeros(4, device="cuda")
    for value in values:
        new = 0.5 * state + 0.5 * run(value)
        old, state = state, new
        print(old.tolist(), state.tolist())


def put_by_a_call(values):
    state, engine = {"out": None}, Engine()
    for value in values:
        result = run(value)
        done = state.update(out=result)
        none = setattr(engine, "out", result)
        print(state["out"].tolist(), engine.out.tolist(), result.tolist(), done is none)


class Filter:
    def __init__(self):
        self.before = self.now = None

    def step(self, value):
        out = run(value)
        self.before, self.now = self.now, out.sum().item()
        if self.before is not None:
            print(self.now - self.before, out.tolist())


class Engine:
    def step(self, value):
        self.out = run(value)


rotated([1.0, 2.0])
only_tested([1.0, 2.0])
newest([1.0, 2.0])
fed_back([1.0, 2.0])
averaged([1.0, 2.0])
put_by_a_call([1.0, 2.0, 3.0])
filtered = Filter()
for value in (1.0, 2.0, 3.0):
    filtered.step(value)
one, two = Engine(), Engine()
for value in (1.0, 2.0):
    one.step(value)
    print(one.out.tolist())
    two.step(value + 1.0)
    print(two.out.tolist())
