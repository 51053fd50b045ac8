"""The static input is resized for a last, smaller batch."""

import torch

x = torch.zeros(32, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
for batch in (torch.ones(32, 4), torch.ones(64, 4)):
    x.resize_(batch.shape).copy_(batch)  # <- replay-with-other-shape
    graph.replay()
    print(y.shape, y.sum().item())
