"""A hook that scales activations is added after the capture."""

import torch
from torch import nn

model = nn.Sequential(nn.Identity(), nn.ReLU()).cuda()
x = torch.ones(4, device="cuda")
model(x)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)  # <- child-module-hooks-captured

model[1].register_forward_hook(lambda module, args, out: out * 3)  # <- child-module-hooks-captured
graph.replay()
print(y[0].item())  # eager: 3.0
