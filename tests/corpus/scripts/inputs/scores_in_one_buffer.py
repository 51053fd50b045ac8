"""Graphs of several sizes write their scores to the first rows of one buffer."""

import torch
from torch import nn

SIZES = (32, 16, 8)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
features = torch.zeros(SIZES[0], 6, device="cuda")
scores = torch.zeros(SIZES[0], device="cuda")
graphs = {}


def score(size):
    scores[:size] = model(features[:size]).squeeze(-1)


with torch.no_grad():
    for size in SIZES:
        score(size)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            score(size)
        graphs[size] = graph
    for count in (5, 30, 9, 16, 11, 4):
        features[:count] = torch.randn(count, 6)
        graphs[min(size for size in SIZES if size >= count)].replay()
        print(scores[:count].argmax().item())
