"""A list of layers grows during training."""

import torch

layers = [lambda x: x * 2]


def forward(x):
    for layer in layers:  # guilty: the layers of the capture
        x = layer(x)
    return x


x = torch.ones(4, device="cuda")
forward(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = forward(x)

layers.append(lambda x: x + 1)  # guilty: replays do not see it
graph.replay()
print(y[0].item())  # eager: 3.0
