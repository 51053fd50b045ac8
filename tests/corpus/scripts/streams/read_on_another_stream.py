"""The output is read on a stream that does not wait for the replay."""

import torch

x = torch.zeros(8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
side = torch.cuda.Stream()
graph.replay()
with torch.cuda.stream(side):
    z = y * 2  # <- unsynchronized-io
