"""A side stream is forked and never joined."""

import torch

side = torch.cuda.Stream()
x = torch.randn(8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2  # <- unjoined-side-stream
    z = x + 1
