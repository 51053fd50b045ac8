"""The captured code takes from generators what differs from call to call."""

import torch


def in_turn(buffers):
    while True:
        yield from buffers


def one_after_another(first, second):
    while True:
        yield first
        yield second


def counts():
    n = 0
    while True:
        yield 1.0 if n < 1000 else 0.5
        n += 1


def differences():
    previous = answer = None
    while True:
        value = yield answer
        answer = value if previous is None else value - previous  # <- input-freed-before-replay
        previous = value.clone()


def kept_if(condition):
    rate = 1.0
    while True:
        if condition:
            rate = 0.5
        yield rate
        rate = rate * 2


x = torch.ones(4, device="cuda")
turns, fresh_turns = in_turn((x, x + 1)), in_turn((x, x + 1))
pair, fresh_pair = one_after_another(x, x + 1), one_after_another(x, x + 1)
count, fresh_count = counts(), counts()
difference, pairs, rates = differences(), zip(counts(), strict=True), kept_if(False)
next(difference)


def step(y):
    y = y * next(turns)  # <- python-scalar-frozen
    y = y * next(pair)  # <- python-side-effects-skipped
    y = y * next(count)  # <- python-scalar-frozen
    y = y * next(pairs)[0]  # <- python-scalar-frozen
    return difference.send(y) * 2  # <- python-side-effects-skipped


step(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = step(x)
    y = y * next(fresh_turns)  # <- python-scalar-frozen
    y = y * next(fresh_pair)  # <- python-side-effects-skipped
    y = y * next(fresh_count)  # <- python-scalar-frozen
    y = y * next(rates)  # <- python-scalar-frozen
for _ in range(3):
    graph.replay()
    print(y.sum().item())
