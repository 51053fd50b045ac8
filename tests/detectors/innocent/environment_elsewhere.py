"""Environment variables that captured code does not read, or that keep their value."""

import os

import torch

os.environ["MODE"] = "fast"


def f(x):
    return x.relu() if os.environ["MODE"] == "fast" else x


x = torch.randn(4, device="cuda")
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    y = f(x)
    found = os.get_exec_path(), os.environb.get(b"MODE")  # names of bytes
os.environ["MODE"] = "fast"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
g.replay()
print(y.tolist())
