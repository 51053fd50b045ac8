"""Seeding before a replay repeats its random numbers, as it does in eager."""

import torch
from torch import nn

drop = nn.Dropout(0.5)
x = torch.ones(4096, device="cuda")
drop(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = drop(x) + torch.rand_like(x)

made = []
for seed in (1, 2, 1):
    torch.manual_seed(seed)
    graph.replay()
    made.append(y.clone())
print(bool((made[0] == made[2]).all()), bool((made[0] == made[1]).all()))  # eager: True False
