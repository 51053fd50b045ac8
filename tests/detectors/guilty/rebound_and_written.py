"""A cache that one method replaces, and that captured code writes in place."""

import torch


class Cache:
    def __init__(self):
        self.keys = torch.zeros(4, device="cuda")

    def crop(self):
        kept = self.keys * (torch.arange(4, device="cuda") < 2)
        self.keys = kept  # <- metadata-address-changed


def write(cache, position, x):
    cache.keys.index_copy_(0, position, x)
    return cache.keys.sum()


cache = Cache()
position, x = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.ones(1, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total = write(cache, position, x)
for step in range(4):
    position.fill_(step)
    graph.replay()
    if step == 2:
        cache.crop()
print(total.item())
