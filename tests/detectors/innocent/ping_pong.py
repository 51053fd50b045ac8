"""Two graphs with an input of their own each, captured in a loop under the same names."""

import torch

slots = []
for _ in range(2):
    x = torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x.square()
    slots.append((graph, x, y))
for step in range(6):
    graph, static, out = slots[step % 2]
    static.fill_(step)
    graph.replay()
    print(out.sum().item())
