"""Forward and backward are captured; a helper makes gradients anew before the eager step."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not

model = nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.zeros(8, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = model(x).square().sum()
    loss.backward()


def average(parameters):
    for p in parameters:
        p.grad = p.grad / 8  # <- grad-set-to-none-between-replays


for _ in range(3):
    x.normal_()
    graph.replay()
    average(model.parameters())
    optimizer.step()
print(loss.item())
