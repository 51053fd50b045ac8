"""Two stages share a memory pool, and the second is replayed before the first one is read."""

import torch

x = torch.ones(1 << 16, device="cuda")
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
pool = torch.cuda.graph_pool_handle()
x * 2 + 1


def draft():
    return (x * 2).sin_().zero_() + 3


with torch.cuda.graph(first, pool=pool):
    kept = draft()
    total = kept.sum()
del kept
with torch.cuda.graph(second, pool=pool):
    other = draft() + 4

second.replay()
held = other.mean()
first.replay()  # <- shared-pool-replay-order
print(held.item(), other.mean().item())  # eager: 7.0 7.0  # <- shared-pool-replay-order
