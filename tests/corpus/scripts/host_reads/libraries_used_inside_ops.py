"""Ops that call cuBLAS in their kernels ran before the capture, and nothing else has called it."""

import torch
from torch import nn


def grid():
    return nn.functional.affine_grid(theta, [1, 3, 8, 8], align_corners=False)


def distances():
    return torch.cdist(points, points)


theta = torch.eye(2, 3, device="cuda")[None]
points = torch.randn(40, 3, device="cuda")
bilinear = nn.Bilinear(4, 4, 2).cuda()
layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).cuda().eval()
pairs, tokens = torch.randn(3, 4, device="cuda"), torch.randn(1, 5, 8, device="cuda")
with torch.no_grad():
    for function in (grid, distances, lambda: bilinear(pairs, pairs), lambda: layer(tokens)):
        function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = function()
        graph.replay()
        print(y.sum().item())
        del graph, y
