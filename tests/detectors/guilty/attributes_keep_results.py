"""Attributes keep an older result beside the output, which is one too."""

from dataclasses import dataclass

import torch


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor | None


class Engine:
    def __init__(self):
        self.x = torch.zeros(4, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self.x * 2
        self.previous = None

    def step(self, value):
        self.x.fill_(value)
        self.graph.replay()

    def run(self, value):
        self.step(value)
        return self.y  # <- output-overwritten-by-next-replay

    def ratio(self):
        self.step(1.0)
        before = self.y  # <- output-overwritten-by-next-replay
        self.step(2.0)
        return (before.mean() / self.y.mean()).item()

    def drift(self, values):
        for value in values:
            self.step(value)
            if self.previous is not None:
                print(torch.cosine_similarity(self.y, self.previous, dim=0).tolist())
            self.previous = self.y  # <- output-overwritten-by-next-replay

    def smooth(self, values):
        average = None
        for value in values:
            self.step(value)
            if average is None:
                average = self.y  # <- output-overwritten-by-next-replay
            else:
                average = 0.9 * average + 0.1 * self.y
        return average.tolist()

    def later(self, values):
        pending = None
        for number, value in enumerate(values):
            self.step(value)
            if pending is not None:
                step, result = pending
                print(step, result.sum().item())
            pending = number, self.y  # <- output-overwritten-by-next-replay


ratio, drift, smooth, later, pairs, both = (Engine() for _ in range(6))
print(ratio.ratio())
drift.drift([1.0, 2.0, 3.0])
print(smooth.smooth([1.0, 2.0]))
later.later([1.0, 2.0, 3.0])
pairs.pair = Pair(left=pairs.run(1.0), right=None)
pairs.pair.right = pairs.run(2.0)
print(pairs.pair.left.sum().item(), pairs.pair.right.sum().item())
both.first, both.second = both.run(1.0), both.run(2.0)
print(both.first.tolist(), both.second.tolist())
