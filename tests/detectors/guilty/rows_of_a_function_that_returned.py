"""A list grows that a function had as an argument, which has captured and returned."""

import torch


def captured(rows, x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.stack(rows).sum(0) + x  # <- control-flow-frozen
    return graph, y


x = torch.ones(4, device="cuda")
rows = [torch.ones(4, device="cuda")]
print((torch.stack(rows).sum(0) + x).sum().item())
graph, y = captured(rows, x)
for _ in range(3):
    graph.replay()
    print(y.sum().item())
    rows.append(torch.ones(4, device="cuda"))
