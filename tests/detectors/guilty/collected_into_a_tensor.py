"""A log collects one output of a graph after each replay, and makes a tensor of all at the end."""

import torch

x = torch.zeros(4, 8, device="cuda")


def statistics():
    return x.mean(), x.norm()


statistics()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    mean, norm = statistics()

log = {"mean": [], "norm": []}
for step in range(6):
    x.fill_(step)
    graph.replay()
    log["mean"].append(mean.item())
    log["norm"].append(norm)  # <- output-overwritten-by-next-replay
print(torch.tensor(log["mean"]).mean(), torch.tensor(log["norm"]).mean())
