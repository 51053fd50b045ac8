"""One buffer is a plain attribute, which `.cuda()` does not move."""

import torch
from torch import nn


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.mean = torch.tensor([1.0, 2.0])

    def forward(self, x):
        return (x - self.mean.to(x.device)) * self.weight  # guilty: a pageable copy in each call


model = Normalised().cuda()
x = torch.ones(2, device="cuda")
with torch.no_grad():
    model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
graph.replay()
print(y.tolist())  # eager: [0.0, -1.0]
