"""Warm-up and capture are inside one autocast block; the graph reads cached casts of weights."""

# Autocast keeps the bfloat16 copies of weights until its outermost block ends. The capture finds
# those of the warm-up: the graph has no cast, so it sees no update of the weights.

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2)).cuda()
optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
obs = torch.zeros(16, 8, device="cuda")
graph = torch.cuda.CUDAGraph()

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):  # <- autocast-weight-cache
    for _ in range(2):
        policy(obs)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        action = policy(obs)  # <- autocast-weight-cache

for _ in range(3):
    obs.normal_()
    graph.replay()
    target = action.float().clone()
    loss = (policy(obs) - target - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
