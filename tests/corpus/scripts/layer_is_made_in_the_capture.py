"""The captured code makes a layer and moves it to the device."""

import torch
from torch import nn

x = torch.ones(1, 2, device="cuda")


def forward():
    head = nn.Linear(2, 2, bias=False)
    nn.init.ones_(head.weight)
    return head.to(x.device)(x)  # guilty: copies the weights from pageable memory


with torch.no_grad():
    forward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = forward()
graph.replay()
print(y.tolist())  # eager: [[2.0, 2.0]]
