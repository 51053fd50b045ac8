"""Each of two models counts its own calls; the graphs were captured at one line."""

import torch
from torch import nn


class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1  # <- cpu-state-step-counter
        return x * 0.9**self.steps


class Runner:
    def __init__(self):
        self.model = Decay().cuda()
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
for _ in range(3):
    print([run(0.5) for run in runners])
