"""The capture waits for work from before it."""

import torch

side = torch.cuda.Stream()
x = torch.randn(8, device="cuda")
with torch.cuda.stream(side):
    y = x * 2
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.cuda.current_stream().wait_stream(side)  # <- wait-on-precapture-work
    z = x + 1
