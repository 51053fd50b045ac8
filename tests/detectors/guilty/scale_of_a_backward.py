"""A number that the backward of an autograd function multiplies by, on a thread of autograd's."""

import torch


class Scaled(torch.autograd.Function):
    scale = 2.0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * Scaled.scale


weight = torch.ones(8, device="cuda", requires_grad=True)
weight.grad = torch.zeros_like(weight)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    weight.grad.zero_()
    Scaled.apply(weight).sum().backward()

graph.replay()
Scaled.scale = 0.5  # <- python-scalar-frozen
graph.replay()
print(weight.grad.tolist())
