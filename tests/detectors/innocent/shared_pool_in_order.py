"""Two graphs of one pool, replayed in the order of capture; the first one's output is cloned."""

import torch

x = torch.ones(1 << 12, device="cuda")
pool = torch.cuda.graph_pool_handle()
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(first, pool=pool):
    a = (x * 3).relu()
with torch.cuda.graph(second, pool=pool):
    b = (a * 2).sum()

for step in range(3):
    x.fill_(step)
    first.replay()
    kept = a.clone()
    second.replay()
    print(b.item(), kept.sum().item())
