"""The results of all requests come from a comprehension over a function that returns the output."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(5, 5), nn.SELU()).cuda().requires_grad_(False)
x = torch.zeros(2, 5, device="cuda")
net(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = net(x)


def answer(request):
    x.copy_(request)
    graph.replay()  # guilty: overwrites what was returned
    return y  # guilty: keeps no copy


results = [answer(torch.full((2, 5), float(i))) for i in range(4)]  # guilty: one tensor, four times
for result in results:
    print(result.mean().item())
