"""Inputs copied on another stream, with the waits that it needs in both directions."""

import torch

x = torch.zeros(1 << 10, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1

copy = torch.cuda.Stream()
ready, used = torch.cuda.Event(), torch.cuda.Event()
host = [torch.full((1 << 10,), float(step)).pin_memory() for step in range(3)]
used.record()
total = torch.zeros((), device="cuda")
for batch in host:
    with torch.cuda.stream(copy):
        copy.wait_event(used)
        x.copy_(batch, non_blocking=True)
        ready.record(copy)
    torch.cuda.current_stream().wait_event(ready)
    graph.replay()
    used.record()
    total += y[0]
print(total.item())
