"""The pinned buffer that a graph reads is a local variable of the function that captures."""

import torch

static = torch.zeros(8, device="cuda")
graph = torch.cuda.CUDAGraph()


def capture():
    staged = torch.ones(8).pin_memory()
    with torch.cuda.graph(graph):
        static.copy_(staged, non_blocking=True)  # <- input-freed-before-replay
        return static * 2


y = capture()
graph.replay()
print(y.sum().item())
