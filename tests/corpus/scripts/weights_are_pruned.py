"""Weights are pruned after the capture: a hook multiplies them by a mask from then on."""

import torch
from torch import nn
from torch.nn.utils import prune

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda().eval()
x = torch.randn(4, 8, device="cuda")
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)

for amount in (0.0, 0.5):
    if amount:
        for layer in model:
            if isinstance(layer, nn.Linear):
                prune.l1_unstructured(layer, "weight", amount)  # guilty: replays use all weights
    graph.replay()
    print(amount, y.norm().item())
