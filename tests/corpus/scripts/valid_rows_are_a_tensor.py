"""A runner pads its batch; how many rows are valid is a tensor, and the runner also counts them."""

import collections

import torch


class PaddedRunner:
    size = 8

    def __init__(self):
        self.x = torch.zeros(self.size, 2, device="cuda")
        self.rows = torch.full((), self.size, device="cuda")
        self.index = torch.arange(self.size, device="cuda")
        self.sizes = collections.Counter()
        self.mean()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.mean()

    def mean(self):
        valid = self.index < self.rows
        return (self.x * valid[:, None]).sum() / self.rows

    def run(self, x):
        self.rows.fill_(len(x))
        self.sizes[len(x)] += 1
        self.x[: len(x)].copy_(x)
        self.graph.replay()
        return self.out.item()


runner = PaddedRunner()
print(
    [runner.run(torch.ones(rows, 2, device="cuda")) for rows in (8, 4, 2)]
)  # eager: [2.0, 2.0, 2.0]
print(runner.sizes.total())  # eager: 3
