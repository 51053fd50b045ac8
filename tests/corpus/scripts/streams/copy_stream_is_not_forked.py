"""The capture uploads its next input on a copy stream that never joined it."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 4).cuda().requires_grad_(False)
copies = torch.cuda.Stream()
host = torch.randn(8, 16).pin_memory()
x = torch.zeros(8, 16, device="cuda")
model(x)
torch.cuda.synchronize()

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    with torch.cuda.stream(copies):
        x.copy_(host, non_blocking=True)  # <- side-stream-not-forked
    torch.cuda.current_stream().wait_stream(copies)  # <- side-stream-not-forked
    out = model(x)

for i in range(3):
    host.fill_(float(i))
    graph.replay()
    torch.cuda.synchronize()
    print(i, out.sum().item())
