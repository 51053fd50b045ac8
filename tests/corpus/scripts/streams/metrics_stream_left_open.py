"""Metrics are computed on a stream of their own, which nobody waits for."""

import torch

x = torch.randn(8, device="cuda")
metrics = torch.cuda.Stream()
y = x * 2
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    metrics.wait_stream(torch.cuda.current_stream())  # <- unjoined-side-stream
    with torch.cuda.stream(metrics):
        norm = y.norm()  # <- unjoined-side-stream
graph.replay()
