"""The model is cast to double for a sensitive evaluation."""

import torch
from torch import nn

model = nn.Linear(2, 2, bias=False).cuda()
nn.init.ones_(model.weight)
x = torch.ones(1, 2, device="cuda")
model(x)
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    y = model(x)  # guilty: reads the float weights

model.double()  # guilty: new storage for each parameter
with torch.no_grad():
    model.weight.mul_(5)
graph.replay()
print(y.tolist())  # eager: [[10.0, 10.0]]
