"""A switch in the environment is flipped between two requests."""

import os

import torch


def activation(x):
    if os.environ.get("MY_RELU", "1") == "1":  # guilty: asked once, while capturing
        return x.relu()
    return x


x = torch.full((4,), -1.0, device="cuda")
activation(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = activation(x)  # guilty: asked once, while capturing

os.environ["MY_RELU"] = "0"  # guilty: replays do not see it
graph.replay()
print(y.sum().item())  # eager: -4.0
