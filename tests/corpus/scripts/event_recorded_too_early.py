"""The event that the reader waits for is recorded before the replay."""

import torch

a = torch.eye(64, device="cuda")
raw = torch.eye(64, device="cuda")
raw @ a
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = raw
    for _ in range(2000):
        y = y @ a
    y = y + 1

compute, ready = torch.cuda.Stream(), torch.cuda.Event()
compute.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(compute):
    ready.record()
    graph.replay()  # guilty: the event does not cover it
torch.cuda.current_stream().wait_event(ready)
total = y.sum()  # guilty: reads while the graph still computes
torch.cuda.synchronize()
print(total.item())  # eager: 4160.0
