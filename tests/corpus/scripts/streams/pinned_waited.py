"""Results through pinned memory, each read after a wait."""

import torch

x = torch.randn(64, device="cuda")
host = torch.empty(64, pin_memory=True)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    host.copy_(x * 2, non_blocking=True)
done = torch.cuda.Event()
for _ in range(3):
    g.replay()
    done.record()
    done.synchronize()
    print(host.sum().item(), host.numpy().max(), host.tolist()[0])
g.replay()
torch.cuda.synchronize()
print(host)
