"""Two branches on two streams, joined before the capture ends."""

import torch

x = torch.ones(4, device="cuda")
side = torch.cuda.Stream()
(x.exp(), x.sin())
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        left = x * 3
    right = x + 5
    torch.cuda.current_stream().wait_stream(side)
    y = left + right

x.fill_(2)
graph.replay()
print(y[0].item())  # eager: 13.0
