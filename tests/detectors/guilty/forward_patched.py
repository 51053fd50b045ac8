"""The forward of a layer is monkeypatched after the capture (a LoRA library does that)."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
x = torch.randn(2, 8, device="cuda")
with torch.no_grad():
    model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)

down, up = torch.randn(8, 2, device="cuda"), torch.randn(2, 8, device="cuda")
original = model[0].forward


def with_lora(inputs):
    return original(inputs) + inputs @ down @ up


model[0].forward = with_lora  # <- control-flow-frozen
graph.replay()
print(y.sum())
