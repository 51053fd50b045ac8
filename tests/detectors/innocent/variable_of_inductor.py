"""In a capture, PyTorch asks for a variable of its own, and sets it, as custom ops do."""

import os

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
x = torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    cache_dir()
    y = x * 2
for _ in range(3):
    graph.replay()
print(y.tolist())
