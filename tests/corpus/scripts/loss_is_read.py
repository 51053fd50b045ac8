"""The loss is read in the captured step."""

import torch
from torch import nn

model = nn.Linear(4, 1).cuda()
x = torch.randn(8, 4, device="cuda")
history = []


def step():
    loss = model(x).square().mean()
    history.append(loss.item())  # guilty: waits for a stream that is capturing
    return loss


step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
graph.replay()
