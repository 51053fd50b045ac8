"""A module counts its calls on the host and computes with the count."""

import torch


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        return x * self.calls


module = Counting()
x = torch.ones(1, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = module(x)
graph.replay()
print(y.item())
