"""An attention backend gets a new block table every step."""

import torch

cache = torch.randn(16, 4, device="cuda")


class Meta:
    pass


meta = Meta()
meta.block_table = torch.zeros(2, 3, dtype=torch.long, device="cuda")
meta.lens = torch.ones(2, device="cuda")


def attend():
    return cache[meta.block_table].sum(1) / meta.lens[:, None]


attend()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = attend()
for _ in range(3):
    meta.block_table = torch.randint(
        16, (2, 3), device="cuda"
    )  # guilty: the graph reads the table of the capture
    meta.lens.fill_(3)
    graph.replay()
    print(out.sum().item())
