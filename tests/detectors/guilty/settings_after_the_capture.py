"""Autocast and deterministic algorithms are switched on after the capture: no replay knows."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4).cuda().eval()
x = torch.randn(2, 8, device="cuda")
rows = torch.zeros(2, dtype=torch.long, device="cuda")
total = torch.zeros(1, 4, device="cuda")


@torch.no_grad()
def step():
    y = model(x)
    total.zero_().index_add_(0, rows, y)
    return y


step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = step()

with torch.autocast("cuda", dtype=torch.bfloat16):  # <- control-flow-frozen
    graph.replay()
    print(y.dtype, y.sum().item())
torch.use_deterministic_algorithms(True)  # <- control-flow-frozen
graph.replay()
print(total.sum().item())
