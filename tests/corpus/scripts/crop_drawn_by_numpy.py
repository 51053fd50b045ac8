"""Augmentation inside the graph: numpy draws the corner of the crop."""

# The corner is a Python int that decides the address of a slice. It is drawn once, while capturing.

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
images = torch.randn(4, 3, 12, 12, device="cuda")
conv = nn.Conv2d(3, 4, 3).cuda()


def augment(batch, size=8):
    top, left = rng.integers(0, 12 - size, 2)  # guilty: drawn once, while capturing
    return batch[:, :, top : top + size, left : left + size]  # guilty: the corner of the capture


def forward():
    return conv(augment(images)).relu().mean()


with torch.no_grad():
    for _ in range(2):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        score = forward()
    for _ in range(3):
        images.normal_()
        graph.replay()
        print(score.item())
