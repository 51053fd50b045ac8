"""A server that keeps the answers by the number of the request, without copies."""

import torch

x = torch.zeros(4, device="cuda")
for _ in range(2):
    y = x * 3
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 3
answers = {}
for request in range(3):
    x.fill_(float(request))
    graph.replay()
    answers[request] = y  # guilty: the same memory for every request
print(sum(answer.sum() for answer in answers.values()).item())  # eager: 36.0
