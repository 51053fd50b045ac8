"""A wrapper takes the place of a model, shares its layer, and drops a buffer that nothing reads."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4, device="cuda")
        self.register_buffer("steps", torch.zeros(1, device="cuda"))

    def forward(self, x):
        return self.layer(x)


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.layer = inner.layer

    def forward(self, x):
        return self.layer(x)


class Runner:
    def __init__(self, model):
        self.model = model

    def step(self, x):
        return self.model(x)


runner, x = Runner(Model()), torch.ones(4, 4, device="cuda")
with torch.no_grad():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = runner.step(x)
    runner.model = Wrapper(runner.model)
    graph.replay()
    print(y.sum().item(), runner.step(x).sum().item())
