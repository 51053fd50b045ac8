"""Edges, points and sequences of different lengths fill static inputs whose first dimension is not
that of the length."""

import torch
from torch import nn

NODES, EDGES, POINTS, TIME = 6, 12, 16, 10
project, mix = nn.Linear(4, 8).cuda(), nn.Conv1d(2, 8, 3, padding=1).cuda()
x = torch.zeros(NODES, 4, device="cuda")
edges = torch.zeros(2, EDGES, dtype=torch.int64, device="cuda")
points = torch.zeros(2, 3, POINTS, device="cuda")
sound = torch.zeros(1, 2, TIME, device="cuda")


def step():
    messages = project(x)[edges[0]]
    nodes = torch.zeros(NODES, 8, device="cuda").index_add_(0, edges[1], messages)
    return nodes.sum(), points.amax(-1), mix(sound).relu().mean(-1)


with torch.inference_mode():
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        energy, largest, features = step()
    for count in (12, 7, 5, 9):
        x.copy_(torch.randn(NODES, 4))
        edges[:, :count].copy_(torch.randint(NODES, (2, count)))  # <- bucket-padding-garbage
        points[..., :count].copy_(torch.randn(2, 3, count))  # <- bucket-padding-garbage
        time = min(TIME, count)
        sound[:, :, :time] = torch.randn(1, 2, time, device="cuda")  # <- bucket-padding-garbage
        graph.replay()
        print(energy.item(), largest.sum().item(), features.sum().item())
