"""A generic stream writes the input of a graph, and nothing waits for it."""

import torch

copies = torch.Stream(device="cuda")
x = torch.zeros(1 << 22, device="cuda")
a = torch.randn(4096, 4096, device="cuda") / 4096
a @ a, x + 1
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
copies.wait_stream(torch.cuda.current_stream())
with copies:
    for _ in range(20):
        a = a @ a
    x.fill_(a[0, 0].isfinite().float())
graph.replay()  # guilty: does not wait for the stream that writes x
print(y[0].item())  # eager: 2.0
