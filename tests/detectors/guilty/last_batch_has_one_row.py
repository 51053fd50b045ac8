"""The last batch has one row, which `copy_` writes into all rows of the input."""

import torch
from torch import nn

net = nn.Linear(8, 4).cuda().requires_grad_(False)
x = torch.zeros(4, 8, device="cuda")
net(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = net(x).sum(0)
total = torch.zeros(4, device="cuda")
for batch in torch.randn(9, 8).split(4):
    x.copy_(batch)  # <- replay-with-other-shape
    graph.replay()
    total += y
print(total.tolist())
