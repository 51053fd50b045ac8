"""Events that were recorded in a capture are timed."""

import torch

x = torch.randn(8, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    start.record()
    y = x * 2
    end.record()
graph.replay()
torch.cuda.synchronize()
print(start.elapsed_time(end))  # <- captured-event-misuse
