"""The host refills a pinned buffer that the copy to the static input may still be reading."""

import torch
from torch import nn

net = nn.Linear(64, 8).cuda().requires_grad_(False)
static = torch.zeros(16, 64, device="cuda")
staging = torch.empty(16, 64, pin_memory=True)
net(static)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = net(static)
total = torch.zeros(8, device="cuda")
for _ in range(5):
    rows = [torch.randn(64) for _ in range(16)]
    torch.stack(rows, out=staging)  # <- pinned-source-frozen
    static.copy_(staging, non_blocking=True)
    graph.replay()
    total += out.sum(0)
print(total.cpu())
