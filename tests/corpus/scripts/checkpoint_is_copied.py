"""Weights of a checkpoint are copied, and the model moves to where it is already."""

import torch
from torch import nn

model = nn.Linear(4, 4, bias=False, device="cuda").eval()
nn.init.zeros_(model.weight)
x = torch.ones(1, 4, device="cuda")
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
checkpoint = {"weight": torch.ones(4, 4)}
model.load_state_dict(checkpoint)
model.to("cuda", torch.float32)
model.eval()
graph.replay()
print(y.sum().item())  # eager: 16.0
