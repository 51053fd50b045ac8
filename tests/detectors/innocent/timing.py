"""A benchmark with events around many replays."""

import torch

x = torch.randn(64, 64, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x
    for _ in range(10):
        y = torch.tanh(y * 1.01)
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
for _ in range(20):
    graph.replay()
end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end) / 20, "ms", y.sum().item())
