"""A custom operator, and an autograd function, whose Python works on shapes and metadata."""

import torch


@torch.library.custom_op("corpus::centre", mutates_args=())
def centre(x: torch.Tensor) -> torch.Tensor:
    count = torch.ones((), device=x.device) * x.numel()
    return x - x.sum() / count


@centre.register_fake
def _(x):
    return torch.empty_like(x)


x = torch.tensor([1.0, 3.0], device="cuda")
centre(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = centre(x)
x.mul_(2)
graph.replay()
print(y.tolist())  # eager: [-2.0, 2.0]
