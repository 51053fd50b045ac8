"""The position of a decoder is raised on the host inside the block that captures."""

# The block runs once: its Python code has no part in a replay. The graph repeats the slice of the
# position at the capture.

import torch

keys = torch.zeros(8, 4, device="cuda")
key = torch.ones(1, 4, device="cuda")
position = 0
keys[position : position + 1].copy_(key)
torch.cuda.synchronize()

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    keys[position : position + 1].copy_(key)  # guilty: the position of the capture
    position += 1  # guilty: not raised by a replay

for _ in range(4):
    graph.replay()
print(keys.sum().item())  # eager: 16.0
