"""Blocks of a KV cache go to pinned memory and come back into other blocks of the same tensor."""

import torch

BLOCKS, ROWS, WIDTH = 4, 2, 4
cache = torch.zeros(BLOCKS, ROWS, WIDTH, device="cuda")
host = torch.zeros(BLOCKS, ROWS, WIDTH, pin_memory=True)
table = torch.zeros(2, dtype=torch.long, device="cuda")
query = torch.ones(1, WIDTH, device="cuda")


def attend():
    keys = cache[table].flatten(0, 1)
    return (query @ keys.t()).softmax(-1) @ keys


attend()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = attend()

cache[0], cache[1] = 1.0, 2.0
table.copy_(torch.tensor([0, 1]))
graph.replay()
print(out.sum().item())
host[:2].copy_(cache[:2], non_blocking=True)
torch.cuda.current_stream().synchronize()
cache[:2].fill_(-5)
cache[2:].copy_(host[:2], non_blocking=True)
table.copy_(torch.tensor([2, 3]))
graph.replay()
print(out.sum().item())
