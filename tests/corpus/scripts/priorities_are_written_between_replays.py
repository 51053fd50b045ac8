"""Prioritized replay: the graph draws rows by priorities that others write, too."""

import torch
from torch import nn

CAPACITY, BATCH = 256, 32
torch.manual_seed(7)
network = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1)).cuda()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, capturable=True)
states = torch.zeros(CAPACITY, 5, device="cuda")
targets = torch.zeros(CAPACITY, device="cuda")
priorities = torch.zeros(CAPACITY, dtype=torch.float64, device="cuda")
correction = torch.tensor(0.4, device="cuda")


def learn():
    sums = priorities.cumsum(0)
    points = torch.rand(BATCH, dtype=torch.float64, device="cuda") * sums[-1]
    rows = torch.searchsorted(sums, points).clamp_max(CAPACITY - 1)
    share = (priorities[rows] / sums[-1]).clamp_min(1e-12)
    weight = (CAPACITY * share).pow(-correction)
    weight = (weight / weight.max()).float()
    optimizer.zero_grad(set_to_none=True)
    error = network(states[rows]).squeeze(-1) - targets[rows]
    (weight * error.square()).mean().backward()
    optimizer.step()
    fresh = error.detach().abs().double().add_(1e-3).pow_(0.6)
    priorities.scatter_reduce_(0, rows, fresh, "amax", include_self=False)


def add(place, count=16):
    rows = torch.arange(place, place + count, device="cuda") % CAPACITY
    fresh = torch.randn(count, 5, device="cuda")
    states[rows], targets[rows] = fresh, fresh.square().sum(-1)
    priorities[rows] = priorities.max().clamp_min(1.0)
    return (place + count) % CAPACITY


place = add(0, 64)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        learn()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    learn()

for turn in range(12):
    place = add(place)
    correction.fill_(min(1.0, 0.4 + turn * 0.05))
    graph.replay()
print(place, priorities.sum().item() > 0)
