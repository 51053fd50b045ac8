"""Evaluation wants full precision, but the graph was captured with TF32."""

import torch

torch.manual_seed(0)
a = torch.randn(256, 256, device="cuda")
torch.backends.cuda.matmul.allow_tf32 = True
a @ a

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = a @ a  # guilty: the kernels of TF32 are in the graph

torch.backends.cuda.matmul.allow_tf32 = False  # guilty: replays do not see it
graph.replay()
exact = a.double() @ a.double()
print((y - exact).abs().max().item() < 1e-3)  # eager: True
