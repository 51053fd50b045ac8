"""Logits go through a chain of processors, inside the graph."""

import torch
from torch import nn


class Banned:
    def __init__(self, ids):
        self.ids = ids

    def __call__(self, logits):
        logits[:, self.ids] = float("-inf")  # guilty: a list becomes a tensor of the host
        return logits


class Temperature:
    def __init__(self, rows):
        self.values = torch.ones(rows, 1, device="cuda")

    def __call__(self, logits):
        return logits / self.values


class Chain:
    def __init__(self, *processors):
        self.processors = processors

    def __call__(self, logits):
        for process in self.processors:
            logits = process(logits)
        return logits


class Sampler:
    def __init__(self, rows, vocabulary):
        self.head = nn.Linear(16, vocabulary).cuda()
        self.temperature = Temperature(rows)
        self.process = Chain(Banned([0, 3, 7]), self.temperature)
        self.hidden = torch.zeros(rows, 16, device="cuda")

    def sample(self):
        logits = self.process(self.head(self.hidden))
        noise = torch.empty_like(logits).exponential_()
        return (logits.softmax(-1) / noise).argmax(-1)

    def capture(self):
        self.sample()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.tokens = self.sample()


with torch.no_grad():
    sampler = Sampler(4, 30)
    sampler.capture()
    for heat in (0.5, 1.0, 1.5):
        sampler.temperature.values.fill_(heat)
        sampler.hidden.copy_(torch.randn(4, 16))
        sampler.graph.replay()
        print(sampler.tokens.tolist())
