"""TF32 is turned on after the capture, to be faster."""

import torch

a = torch.randn(64, 64, device="cuda")
b = torch.randn(64, 64, device="cuda")
a @ b
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    c = a @ b
torch.backends.cuda.matmul.allow_tf32 = True  # <- control-flow-frozen
for _ in range(3):
    graph.replay()
print(c.norm().item())
