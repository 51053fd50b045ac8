"""The outputs of three batches are collected in a dictionary."""

import torch

x = torch.zeros(2, device="cuda")
x * 2
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2

results = {}
for number in range(3):
    x.fill_(number)
    graph.replay()  # guilty: overwrites what was kept
    results[number] = {"y": y}  # guilty: kept without a copy
print([each["y"][0].item() for each in results.values()])  # eager: [0.0, 2.0, 4.0]
