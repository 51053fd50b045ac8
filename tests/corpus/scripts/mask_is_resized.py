"""A mask that the graph reads is resized for a longer prompt."""

import torch

mask = torch.ones(4, device="cuda")
x = torch.ones(4, device="cuda")
(x * mask).sum()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x * mask[:4]).sum()
mask.resize_(4096).fill_(3.0)  # guilty: the graph reads the memory that it had before
graph.replay()
print(y.item())  # eager: 12.0
