"""What a backward may not do follows from a line of the forward; that of a function of the user's
has lines of its own."""

import torch

w = torch.rand(4, 8, device="cuda", requires_grad=True)
x = torch.rand(4, 8, device="cuda")


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(max=1)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        largest = x.max().item()  # <- sync-item
        return gradient * largest


def product_of(x):
    y = w * x
    return y.cumprod(-1).sum()  # <- hidden-sync-in-stock-module


def clipped(x):
    y = w * x
    return Clipped.apply(y).sum()


def captured(function):
    for _ in range(3):
        function(x).backward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            loss = function(x)
            loss.backward()
    except RuntimeError as error:
        print(error)


captured(product_of)
captured(clipped)
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph), torch.autograd.detect_anomaly():
        loss = (w * x).sum()
        loss.backward()  # <- nan-guard-sync
except RuntimeError as error:
    print(error)
