"""Gradients of a captured backward are changed in place, or made anew of what it has written."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not

x = torch.zeros(8, 4, device="cuda")
in_place, anew = nn.Linear(4, 2).cuda(), nn.Linear(4, 2).cuda()
parameters = [*in_place.parameters(), *anew.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = in_place(x).square().sum() + anew(x).square().sum()
    loss.backward()
written = [p.grad for p in anew.parameters()]

for number in range(4):
    x.normal_()
    graph.replay()
    for p in in_place.parameters():
        p.grad.div_(8)
    nn.utils.clip_grad_norm_(in_place.parameters(), 1.0)
    for p, gradient in zip(anew.parameters(), written, strict=True):
        p.grad = gradient / 8
    optimizer.step()
    if number == 1:
        # An eager step on a short batch, after which the gradients of the graph are put back.
        captured = [p.grad for p in in_place.parameters()]
        optimizer.zero_grad()
        in_place(x[:3]).sum().backward()
        optimizer.step()
        for p, gradient in zip(in_place.parameters(), captured, strict=True):
            p.grad = gradient
print(loss.item())
