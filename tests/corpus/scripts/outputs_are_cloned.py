"""Results of several replays are kept as copies."""

import torch

x = torch.zeros(2, device="cuda")
x * 2
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2

results = []
for number in range(3):
    x.fill_(number)
    graph.replay()
    results.append(y.clone())
print(torch.stack(results)[:, 0].tolist())  # eager: [0.0, 2.0, 4.0]
