"""An eager op, and another graph, read on side streams what the next replay overwrites."""

import torch

field = torch.rand(4, device="cuda")
steps, sums = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(steps):
    field.mul_(0.9)
    doubled = field * 2
with torch.cuda.graph(sums):
    total = doubled.sum()
torch.cuda.synchronize()
side, kept = torch.cuda.Stream(), []
for _ in range(3):
    steps.replay()  # <- unsynchronized-io
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        kept.append(field.clone())
torch.cuda.synchronize()
for _ in range(3):
    steps.replay()  # <- unsynchronized-io
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        sums.replay()
torch.cuda.synchronize()
print(total.item(), torch.stack(kept).sum().item())
