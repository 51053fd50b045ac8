"""Captured code changes lists of tensors: memory that it takes and gives back, and a log."""

from collections import deque

import torch

state = torch.ones(4, device="cuda")
free = deque(torch.empty(4, device="cuda") for _ in range(4))
losses = deque(maxlen=2)


def step():
    scratch = free.popleft()
    torch.mul(state, 2, out=scratch)
    state.copy_(scratch / 3)
    free.append(scratch)
    losses.append(state.sum())


for _ in range(3):
    step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(3):
    graph.replay()
print(state.tolist())
