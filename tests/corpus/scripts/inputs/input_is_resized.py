"""A larger batch: the static input is resized, and filled."""

import torch

x = torch.ones(4, device="cuda")
x.sum()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x.sum()  # <- replay-with-other-shape

x.resize_(4096)  # <- replay-with-other-shape
x.fill_(1.0)
graph.replay()
print(y.item())  # eager: 4096.0
