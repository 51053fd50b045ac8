"""Metadata that is created again on an object of the script."""

import torch


class Plan:
    def __init__(self):
        self.index = torch.tensor([0, 1], device="cuda")


plan = Plan()
x = torch.arange(4.0, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x.index_select(0, plan.index)
graph.replay()
plan.index = torch.tensor([2, 3], device="cuda")  # <- metadata-address-changed
graph.replay()
print(y.tolist())
