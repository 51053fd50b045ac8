"""A tensor of the host as an operand, changed after the capture."""

import torch

scale = torch.tensor(2.0)
x = torch.ones(1, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * scale  # <- cpu-scalar-tensor-operand
scale.fill_(5.0)
graph.replay()
print(y.item())
