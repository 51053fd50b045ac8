"""A mask that the graph reads shrinks, and grows within its memory."""

import torch

room = torch.ones(4096, device="cuda")
mask = room[:4]
x = torch.ones(4, device="cuda")
(x * mask).sum()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x * mask[:4]).sum()
mask = room.narrow(0, 0, 4)
mask.fill_(3.0)
graph.replay()
print(y.item())  # eager: 12.0
