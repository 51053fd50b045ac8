"""A hook that should collect activations is added after the capture: it never runs."""

import torch
from torch import nn

collected = []
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()
x = torch.randn(2, 8, device="cuda")
with torch.no_grad():
    model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)


def collect(_module, _args, output):
    collected.append(output.clone())


model[1].register_forward_hook(collect)  # <- child-module-hooks-captured
for _ in range(3):
    graph.replay()
print(len(collected))
