"""A custom operator selects by a mask."""

import torch


@torch.library.custom_op("corpus::positive_sum", mutates_args=())
def positive_sum(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sum()  # <- sync-dynamic-shape-op


x = torch.tensor([-1.0, 4.0], device="cuda")
positive_sum(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = positive_sum(x)
graph.replay()
print(y.item())  # eager: 4.0
