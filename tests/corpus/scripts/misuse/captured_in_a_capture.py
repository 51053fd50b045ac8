"""A module captures itself at its first call, which is in another capture."""

import torch
from torch import nn


class CapturedAtFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.graph = nn.Linear(8, 8), None

    def forward(self, x):
        if self.graph is None:
            self.x, self.graph = x.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):  # <- api-order-misuse
                self.y = self.layer(self.x)
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()


model = CapturedAtFirst().cuda()
x = torch.randn(4, 8, device="cuda")
with torch.no_grad():
    model.layer(x)
    outer = torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        y = model(x).relu()
outer.replay()
print(y.sum().item())
