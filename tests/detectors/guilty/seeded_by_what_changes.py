"""Captured code seeds a generator by the number of the epoch, which goes on."""

import torch

x = torch.randn(2, 4, device="cuda")
sampler = {"epoch": 0}


def columns():
    generator = torch.Generator().manual_seed(sampler["epoch"])
    total = x.new_zeros(2)
    for number in torch.randperm(4, generator=generator).tolist():
        total = total * 2 + x[:, number]
    return total


columns()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total = columns()
for epoch in range(3):
    sampler["epoch"] = epoch  # <- python-scalar-frozen
    x.uniform_()
    graph.replay()
    print(total.sum().item())
