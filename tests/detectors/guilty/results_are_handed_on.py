"""The result before the last one goes to another name, which is read beside the last one."""

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2

run = lambda value: (x.fill_(value), graph.replay(), y)[2]  # noqa: E731


def rotated(values):
    before = None
    now = None
    for value in values:
        before, now = now, run(value)  # <- output-overwritten-by-next-replay
        if before is not None:
            print((now - before).sum().item())


def one_after_the_other(values):
    last = run(0.0)  # <- output-overwritten-by-next-replay
    for value in values:
        new = run(value)
        before = last
        print(before.tolist(), new.tolist())


def multistep(values):
    oldest = old = new = None
    for value in values:
        result = run(value)
        oldest, old, new = old, new, result  # <- output-overwritten-by-next-replay
        if oldest is not None:
            print((new - 2 * old + oldest).tolist())


def nested():
    before = now = None

    def step(value):
        nonlocal before, now
        out = run(value)
        before, now = now, out  # <- output-overwritten-by-next-replay
        if before is not None:
            print((now - before).tolist())

    for value in (1.0, 2.0, 3.0):
        step(value)


class Filter:
    def __init__(self):
        self.before = self.now = None

    def step(self, value):
        out = run(value)
        self.before, self.now = self.now, out  # <- output-overwritten-by-next-replay
        if self.before is not None:
            print(self.now.sum().item(), self.before.sum().item())


class Engine:
    def step(self, value):
        self.out = run(value)  # <- output-overwritten-by-next-replay


rotated([1.0, 2.0, 3.0])
one_after_the_other([1.0, 2.0])
multistep([1.0, 2.0, 3.0])
nested()
filtered = Filter()
for value in (1.0, 2.0, 3.0):
    filtered.step(value)
one, two = Engine(), Engine()
for value in (1.0, 2.0):
    one.step(value)
    two.step(value + 1.0)
    print(one.out.tolist(), two.out.tolist())
