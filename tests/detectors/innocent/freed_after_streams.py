"""Tensors that a side stream reads are freed after the join, kept by `record_stream` or by
autograd, or their memory is not needed before the join."""

import torch

side = torch.cuda.Stream()
x = torch.randn(1 << 16, device="cuda")
weight = torch.randn(1 << 16, device="cuda", requires_grad=True)


def on_the_side(tensor):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return tensor.square().sum()


graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    main = torch.cuda.current_stream()
    joined = x * 2
    total = on_the_side(joined)
    main.wait_stream(side)
    del joined
    recorded = x * 3
    other = on_the_side(recorded)
    recorded.record_stream(side)
    del recorded
    first = x * 4
    main.wait_stream(side)
    saved = weight * weight
    loss = on_the_side(saved)
    del saved
    second = first * 5
    main.wait_stream(side)
    (gradient,) = torch.autograd.grad(loss, weight)
    small = x[:64] * 6
    largest = on_the_side(small)
    del small
    third = second * 7
    main.wait_stream(side)
    total = total + other + largest + third.sum()
graph.replay()
print((total + gradient.sum()).item())
