"""The graphs of two runners were captured at one line; a number of one model changes."""

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = 2.0

    def forward(self, x):
        return x * self.gain


class Runner:
    def __init__(self):
        self.model = Scaled().cuda()
        self.x = torch.ones(4, device="cuda")
        self.model(self.x)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self.model(self.x)

    def __call__(self, value):
        self.x.fill_(value)
        self.graph.replay()
        return self.y.tolist()


runners = [Runner(), Runner()]
print([run(0.5) for run in runners])
runners[1].model.gain = 4.0  # <- python-scalar-frozen
print([run(0.5) for run in runners])
