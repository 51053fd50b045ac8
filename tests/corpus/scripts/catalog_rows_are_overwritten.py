"""New items take the rows of items that are gone."""

import torch
from torch import nn

items = nn.Embedding(100, 16, device="cuda").requires_grad_(False)
names = [f"item {row}" for row in range(100)]
user = torch.randn(4, 16, device="cuda")


def rank():
    return (user @ items.weight.T).topk(5)


rank()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    scores, best = rank()

for day in range(3):
    rows = torch.randperm(100)[:10]
    items.weight[rows.cuda()] = torch.randn(10, 16, device="cuda")
    for row in rows.tolist():
        names[row] = f"day {day}, item {row}"
    for _ in range(2):
        user.normal_()
        graph.replay()
        print(day, [names[row] for row in best[0].tolist()])
