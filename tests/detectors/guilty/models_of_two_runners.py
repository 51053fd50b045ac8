"""A runner gets the model of another runner, which has a graph of its own."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not


class Runner:
    def __init__(self):
        self.model = nn.Linear(4, 4, device="cuda")

    def step(self, x):
        return self.model(x)

    def capture(self):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = self.step(x)
        return graph, y


x = torch.ones(4, 4, device="cuda")
first, second = Runner(), Runner()
with torch.no_grad():
    graph, y = first.capture()
    other, z = second.capture()
    first.model = second.model  # <- parameter-rebound
    graph.replay()
    other.replay()
    print(y.sum().item(), z.sum().item())
