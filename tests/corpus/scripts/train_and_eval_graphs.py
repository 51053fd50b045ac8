"""One graph for training and one for evaluation, each replayed in its own mode."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Dropout(0.5)).cuda()
nn.init.eye_(model[0].weight)
x = torch.ones(1024, 2, device="cuda")
graphs = {}
for training in (True, False):
    model.train(training)
    with torch.no_grad():
        model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
    graphs[training] = graph, y

kept = []
for _ in range(2):
    for training in (True, False):
        model.train(training)
        graph, y = graphs[training]
        graph.replay()
        kept.append((y == 0).any().item())
print(kept)  # eager: [True, False, True, False]
