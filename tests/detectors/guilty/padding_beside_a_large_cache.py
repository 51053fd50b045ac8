"""The graph writes more memory than is copied to replay it with other padding: not tried."""

import torch

cache = torch.empty(300 << 20, device="cuda")
rows = torch.zeros(8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = rows * 2
    cache[:1].fill_(1)

for count in (8, 3):
    rows[:count].copy_(torch.randn(count))  # <- bucket-padding-garbage
    graph.replay()
    print(out[:count].sum().item())
