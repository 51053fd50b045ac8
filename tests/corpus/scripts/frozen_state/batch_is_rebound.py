"""The loop binds the batch to the name of the static input."""

import torch

x = torch.zeros(4, device="cuda")
x.exp()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x.exp().sum()  # <- input-rebound-not-copied

# The memory of the first batch is free again for the second one.
for batch in (torch.zeros(4), torch.zeros(4), torch.ones(4)):
    x = batch.cuda()  # <- input-rebound-not-copied
    graph.replay()
print(y.item())  # eager: 10.87313
