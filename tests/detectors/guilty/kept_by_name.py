"""An output gets another name after one replay, and is read by it after a later one."""

import functools
import operator

import torch

FIRST = operator.itemgetter(0)
x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    score = y.sum()


def replay(value):
    x.fill_(value)
    graph.replay()
    return score.item()


def best_of(values):
    best, best_score = None, 0.0
    for value in values:
        now = replay(value)
        if now > best_score:
            best, best_score = y, now  # <- output-overwritten-by-next-replay
    return best.tolist()


def each_second(values):
    last = None
    for step, value in enumerate(values):
        replay(value)
        if step % 2 == 0:
            last = y.detach()  # <- output-overwritten-by-next-replay
    return torch.linalg.vector_norm(last).item()


class Search:
    def __init__(self):
        self.best, self.score = None, 0.0

    def step(self, value):
        now = replay(value)
        is_better = now > self.score
        if is_better:
            self.best = y  # <- output-overwritten-by-next-replay
            self.score = now


def greatest(values):
    best = 0.0, None
    for value in values:
        now = replay(value)
        out = y[:2]
        best = max(best, (now, out), key=FIRST)  # <- output-overwritten-by-next-replay
    return best[1].tolist()


def compared():
    replay(1.0)
    before = y  # <- output-overwritten-by-next-replay
    replay(2.0)
    return before.mean().item() / y.mean().item()


def drift(values):
    previous = None
    for value in values:
        replay(value)
        current = y.view(2, 2)
        if previous is not None:
            print(torch.cosine_similarity(current, previous, dim=0).tolist())
        previous = current  # <- output-overwritten-by-next-replay


def averaged(values):
    average = None
    for value in values:
        replay(value)
        if average is None:
            average = y  # <- output-overwritten-by-next-replay
        else:
            average = 0.9 * average + 0.1 * y
    return average.tolist()


class Smoother:
    def __init__(self):
        self.last = None

    def update(self, now):
        result = now.clone() if self.last is None else 0.5 * (now + self.last)
        self.last = now  # <- output-overwritten-by-next-replay
        return result


def difference_to_the_first():
    reference = None

    def check(value):
        nonlocal reference
        replay(value)
        if reference is None:
            reference = y  # <- output-overwritten-by-next-replay
        return (y - reference).abs().sum().item()

    return check


def reported_later(values):
    pending = None
    for step, value in enumerate(values):
        replay(value)
        if pending is not None:
            number, loss = pending
            print(number, loss.item())
        pending = step, score  # <- output-overwritten-by-next-replay


def last_good(values):
    good = None
    for value in values:
        replay(value)
        if value < 0:
            out = good
        else:
            out = y
            good = y  # <- output-overwritten-by-next-replay
        print(out.tolist())


def resumed(values):
    last = None
    for value in values:
        yield replay(value)
        if last is not None:
            print(last.tolist())
        last = y  # <- output-overwritten-by-next-replay


# The best is never the last.
print(best_of([1.0, 5.0, 2.0]), each_second([1.0, 2.0]), greatest([1.0, 4.0, 3.0]))
search = Search()
for value in (3.0, 2.0, 1.0):
    search.step(value)
print(search.best.sum().item(), compared())
drift([1.0, 2.0, 3.0])
print(list(resumed([1.0, 2.0, 3.0])))
reported_later([1.0, 2.0, 3.0])
last_good([1.0, 2.0, -1.0, 3.0])
print(averaged([1.0, 2.0, 3.0]))
smoother = Smoother()
for value in (1.0, 3.0):
    replay(value)
    print(smoother.update(y).tolist())
check = difference_to_the_first()
print(check(1.0), check(2.0), check(3.0))
# The last is the best: only luck makes it right.
print(functools.reduce(lambda _, each: best_of(each), ([1.0, 2.0], [2.0, 3.0]), None))
