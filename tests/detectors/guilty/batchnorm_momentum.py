"""Momentum of the batch norms is lowered for the last epochs."""

import torch
from torch import nn


def set_momentum(model, value):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = value  # <- python-scalar-frozen


def main():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).cuda().train()
    x = torch.randn(4, 3, 16, 16, device="cuda")
    with torch.no_grad():
        for _ in range(2):
            model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model(x)
    for step in range(10):
        if step == 5:
            set_momentum(model, 0.01)
        graph.replay()
    print(model[1].running_mean, y.shape)


if __name__ == "__main__":
    main()
