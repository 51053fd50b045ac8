"""An adapter is added to the weight for a while and subtracted afterwards."""

from contextlib import contextmanager

import torch
from torch import nn


class Merged(nn.Linear):
    def __init__(self, inputs, outputs, rank=3):
        super().__init__(inputs, outputs)
        self.down = nn.Parameter(torch.randn(rank, inputs) * 0.1)
        self.up = nn.Parameter(torch.randn(outputs, rank) * 0.1)
        self.merged = False

    @torch.no_grad()
    def merge(self):
        if not self.merged:
            self.weight.data += self.up @ self.down
            self.merged = True

    @torch.no_grad()
    def unmerge(self):
        if self.merged:
            self.weight.data -= self.up @ self.down
            self.merged = False


@contextmanager
def adapted(model):
    layers = [layer for layer in model.modules() if isinstance(layer, Merged)]
    for layer in layers:
        layer.merge()
    yield model
    for layer in layers:
        layer.unmerge()


torch.manual_seed(3)
model = nn.Sequential(Merged(12, 24), nn.ReLU(), Merged(24, 5)).cuda().eval()
x = torch.zeros(4, 12, device="cuda")
with torch.no_grad():
    for _ in range(2):
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)

for turn in range(4):
    x.copy_(torch.randn(4, 12, device="cuda"))
    if turn % 2:
        with adapted(model):
            graph.replay()
            print("adapted", y.norm().item())
    else:
        graph.replay()
        print("base", y.norm().item())
