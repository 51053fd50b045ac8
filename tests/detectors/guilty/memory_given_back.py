"""The weights leave the device, and come back to other memory."""

import torch
from torch import nn

model = nn.Linear(16, 16).cuda().requires_grad_(False)
host = [p.cpu() for p in model.parameters()]
x = torch.zeros(2, 16, device="cuda")
model(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)
graph.replay()
for p in model.parameters():
    p.untyped_storage().resize_(0)  # <- input-freed-before-replay
other = torch.randn(4096, device="cuda")
for p, kept in zip(model.parameters(), host, strict=True):
    p.untyped_storage().resize_(kept.nbytes)
    p.copy_(kept)
graph.replay()
print(y.sum().item(), other.sum().item())
