"""Losses are kept with detach(), which shares memory."""

import torch

w = torch.ones(2, device="cuda", requires_grad=True)
x = torch.zeros(2, device="cuda")
(w * x).sum()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = (w * x).sum()

losses = []
for number in range(3):
    x.fill_(number)
    graph.replay()  # guilty: overwrites what was kept
    losses.append(loss.detach())  # guilty: shares memory with the output
print(torch.stack(losses).tolist())  # eager: [0.0, 2.0, 4.0]
