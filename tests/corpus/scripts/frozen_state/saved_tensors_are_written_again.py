"""One buffer is the input of two layers: before each backward it gets what its forward has read."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not

layers = [nn.LayerNorm(8).cuda(), nn.LayerNorm(8).cuda()]
x = torch.zeros(4, 8, device="cuda", requires_grad=True)
gradient = torch.ones(4, 8, device="cuda")
pool = torch.cuda.graph_pool_handle()
graphs = []
for layer in layers:
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(forward, pool=pool):
        y = layer(x)
    with torch.cuda.graph(backward, pool=pool):
        (weight,) = torch.autograd.grad(y, (layer.weight,), (gradient,), retain_graph=True)
    graphs.append((forward, backward, y, weight))

for _ in range(4):
    inputs = [torch.randn(4, 8, device="cuda") for _ in layers]
    for (forward, *_), value in zip(graphs, inputs, strict=True):
        with torch.no_grad():
            x.copy_(value)
        forward.replay()
    for (_, backward, _, weight), value in reversed(list(zip(graphs, inputs, strict=True))):
        with torch.no_grad():
            x.copy_(value)
        backward.replay()
        print(weight.norm().item())
