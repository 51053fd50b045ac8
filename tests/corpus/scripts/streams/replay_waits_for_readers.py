"""What is read on a side stream is overwritten only when the reader is done."""

import torch

field = torch.rand(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    field.mul_(0.9)
    doubled = field * 2
torch.cuda.synchronize()
side, event = torch.cuda.Stream(), torch.cuda.Event()
host, kept = torch.empty(4).pin_memory(), []
for _ in range(3):
    torch.cuda.current_stream().wait_stream(side)
    graph.replay()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        kept.append(field.clone())
torch.cuda.current_stream().wait_stream(side)
for _ in range(3):
    graph.replay()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host.copy_(doubled, non_blocking=True)
        event.record()
    event.synchronize()
    kept.append(host.clone())
print(torch.stack([each.cpu() for each in kept]).sum().item())
