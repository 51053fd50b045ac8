"""A script that decides at run time whether to use its graph."""

import torch

x = torch.ones(4, device="cuda")


def forward():
    return (x * 2).sum()


forward()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = forward()

results = []
for number in range(4):
    x.fill_(number)
    if number % 2:
        graph.replay()
        results.append(y.item())
    else:
        results.append(forward().item())
print(results)  # eager: [0.0, 8.0, 16.0, 24.0]
