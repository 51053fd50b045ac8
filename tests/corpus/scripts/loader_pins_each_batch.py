"""Each batch is pinned anew, and never written again."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

m = nn.Linear(6, 2).cuda().requires_grad_(False)
x = torch.zeros(4, 6, device="cuda")
m(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = m(x)
acc = torch.zeros(2, device="cuda")
for (b,) in DataLoader(TensorDataset(torch.randn(16, 6)), batch_size=4):
    x.copy_(b.pin_memory(), non_blocking=True)
    graph.replay()
    acc += y.sum(0)
print(acc.tolist())
