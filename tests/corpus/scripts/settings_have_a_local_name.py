"""Layers read two settings through a local name; the loop changes a third."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.w = nn.Linear(8, 8)

    def forward(self, x):
        cfg = self.config
        scale = cfg["scale"] / cfg["heads"] ** 0.5
        return self.w(x) * scale


config = {"scale": 1.0, "heads": 4, "epoch": 0}
layers = nn.ModuleList([Layer(config) for _ in range(3)]).cuda().eval()
x = torch.randn(4, 8, device="cuda")


@torch.no_grad()
def run():
    h = x
    for layer in layers:
        h = layer(h)
    return h


run()
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    y = run()
for epoch in range(4):
    config["epoch"] = epoch
    x.normal_()
    g.replay()
print(config["epoch"], y.sum().item())
