"""Uncertainty of a forecast: the mean and variance of many replays with dropout."""

import torch
from torch import nn


class Welford:
    """Mean and variance of a stream of tensors."""

    def __init__(self, like):
        self.count = 0
        self.mean = torch.zeros_like(like)
        self.squares = torch.zeros_like(like)

    def add(self, value):
        self.count += 1
        delta = value - self.mean
        self.mean.add_(delta / self.count)
        self.squares.addcmul_(delta, value - self.mean)

    def variance(self):
        return self.squares / max(1, self.count - 1)


class MonteCarlo:
    def __init__(self, model, past):
        self.past = past
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(self.past)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.forecast = model(self.past)

    def __call__(self, past, samples=16):
        self.past.copy_(past)
        statistics = Welford(self.forecast)
        for _ in range(samples):
            self.graph.replay()
            statistics.add(self.forecast)
        return statistics.mean, statistics.variance()


model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
model = model.cuda().train()
with torch.inference_mode():
    forecast = MonteCarlo(model, torch.zeros(4, 12, device="cuda"))
    for _ in range(3):
        mean, variance = forecast(torch.randn(4, 12).cumsum(1))
        print(mean.mean().item(), variance.mean().item())
