"""The parametrization of a layer is folded into its weight after the capture."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

model = nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU()).cuda().eval()
x = torch.randn(4, 8, device="cuda")
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)  # guilty: reads the originals
graph.replay()
before = y.clone()
parametrize.remove_parametrizations(
    model[0], "weight"
)  # guilty: the graph computes from the originals
with torch.no_grad():
    model[0].weight.mul_(2)  # guilty: the graph has no such weight
graph.replay()
print((y / before).nanmean().item())
