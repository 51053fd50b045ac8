"""`copy_()` takes a number, which fills the tensor."""

import torch

x = torch.ones(4, 4, device="cuda")
gain = torch.ones(1, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * gain
for value in (0.5, 1, True):
    gain.copy_(value)
    x[:2].copy_(value, non_blocking=True)
    x[2:].copy_(value)
    graph.replay()
    print(y.sum().item())
