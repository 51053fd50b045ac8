"""The captured rollout writes into a ring whose position is a Python number."""

import torch


class Ring:
    def __init__(self, size, width):
        self.size, self.ptr = size, 0
        self.data = torch.zeros(size, width, device="cuda")

    def add(self, row):
        self.data[self.ptr] = row  # guilty: the row of the capture
        self.ptr = (self.ptr + 1) % self.size  # guilty: no replay moves it


ring = Ring(8, 4)
state = torch.ones(4, device="cuda")


def rollout():
    state.mul_(1.5).add_(1)
    ring.add(state)


rollout()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    rollout()
for _ in range(4):
    graph.replay()
print(ring.data.sum(-1).tolist())
