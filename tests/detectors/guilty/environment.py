"""An environment variable switches the activation."""

import os

import torch


def activation(x):
    if os.environ.get("ACT", "relu") == "relu":
        return torch.relu(x)
    return torch.nn.functional.gelu(x)


x = torch.randn(8, 8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = activation(x)
graph.replay()
os.environ["ACT"] = "gelu"  # <- control-flow-frozen
graph.replay()
print(y)
