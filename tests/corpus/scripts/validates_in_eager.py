"""Validation runs the same model in eager mode, and goes back to training."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Dropout(0.0)).cuda().train()
nn.init.ones_(model[0].weight)
x = torch.ones(1, 2, device="cuda")
model(x)
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    y = model(x)

scores = []
for _ in range(2):
    graph.replay()
    model.eval()
    with torch.no_grad():
        scores.append(model(x).sum().item())
    model.train()
print(scores, y.sum().item())  # eager: [4.0, 4.0] 4.0
