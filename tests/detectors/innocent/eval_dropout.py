"""In eval mode the rate of dropout does not matter."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)).cuda().eval()
x = torch.randn(2, 8, device="cuda")
with torch.no_grad():
    model(x)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = model(x)
    model[1].p = 0.3
    model[2].momentum = 0.01
    g.replay()
print(y.sum().item())
