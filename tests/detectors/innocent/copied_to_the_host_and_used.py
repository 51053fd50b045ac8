"""A capture copies to the host, and the script reads there after it has waited."""

import torch

x = torch.randn(4, 8, device="cuda")
staging = torch.zeros(8, pin_memory=True)
filled = torch.full((8,), 0.5, pin_memory=True)


def step(x):
    staging.copy_(x[0], non_blocking=True)
    return x * 2 + filled.cuda(non_blocking=True) * float(filled[0])


for _ in range(3):
    step(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = step(x)
for _ in range(3):
    x.copy_(torch.randn(4, 8))
    graph.replay()
torch.cuda.synchronize()
print(result.sum().item(), int(staging.argmax()))
