"""Validation calls eval(), and replays the graph of training."""

import torch
from torch import nn

model = nn.Sequential(nn.Identity(), nn.Dropout(0.5)).cuda().train()
x = torch.ones(10_000, device="cuda")
model(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)  # <- train-eval-toggle

model.eval()  # <- train-eval-toggle
graph.replay()
print((y == 0).any().item())  # eager: False
