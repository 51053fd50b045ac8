"""The model was never moved to the GPU, and its output is moved there."""

import torch
from torch import nn

model = nn.Linear(2, 1, bias=False)
nn.init.ones_(model.weight)
x = torch.ones(1, 2, device="cuda")


def forward():
    return model(x.cpu()).cuda()  # guilty: copies both ways in each call


with torch.no_grad():
    forward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = forward()
graph.replay()
print(y.item())  # eager: 2.0
