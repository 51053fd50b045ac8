"""Copies to the host are written to files once they are through; before, they are only moved."""

import copy
import io
import pickle

import torch
from torch import nn

net = nn.Linear(4, 2).cuda().requires_grad_(False)
x = torch.ones(3, 4, device="cuda")
net(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = net(x)
    net.weight.mul_(0.5)

for _ in range(2):
    graph.replay()
    weights = {name: value.to("cpu", non_blocking=True) for name, value in net.state_dict().items()}
    out = y.to("cpu", non_blocking=True)
    same = copy.copy(out)
    beside = copy.copy(weights)
    torch.save(net.state_dict(), io.BytesIO())  # waits: the weights are on the device
    graph.replay()
    again = y.to("cpu", non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    copied.synchronize()
    pickle.dumps((weights, out, same, beside, again))
