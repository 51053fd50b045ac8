"""The inputs are on the GPU, and the model was never moved there."""

import torch
from torch import nn

model = nn.Linear(2, 1, bias=False)
x = torch.ones(1, 2, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    y = model(x)  # guilty: no kernel takes weights of the host
graph.replay()
print(y.shape[0])  # eager: 1
