"""After the capture the model gets a wrapper with the same weights, for eager batches."""

import torch
from torch import nn


class Counting(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.calls = module, 0

    def forward(self, x):
        self.calls += 1
        return self.module(x)


class Server:
    def __init__(self, model):
        self.model = model
        self.x = torch.ones(2, 4, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        self.eager(self.x)
        with torch.cuda.graph(self.graph):
            self.y = self.eager(self.x)

    def eager(self, x):
        return self.model(x)


model = nn.Linear(4, 1, bias=False, device="cuda").requires_grad_(False)
nn.init.ones_(model.weight)
server = Server(model)
server.model = Counting(model)
long = server.eager(torch.ones(5, 4, device="cuda"))
server.graph.replay()
print(server.y.sum().item(), long.sum().item(), server.model.calls)  # eager: 8.0 20.0 1
