"""Augmentation inside the graph: shifts are drawn by the default generator of the GPU."""

# Draws of the default CUDA generator advance with each replay (its offset is a graph input).

import torch
from torch import nn

images = torch.randn(4, 3, 12, 12, device="cuda")
places = torch.arange(8, device="cuda")
conv = nn.Conv2d(3, 4, 3).cuda()


def augment(batch):
    top = torch.randint(0, 5, (1,), device="cuda")
    left = torch.randint(0, 5, (1,), device="cuda")
    return batch.index_select(2, top + places).index_select(3, left + places)


def forward():
    return conv(augment(images)).relu().mean()


with torch.no_grad():
    for _ in range(2):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        score = forward()
    torch.manual_seed(7)
    seen = []
    for _ in range(3):
        images.normal_()
        graph.replay()
        seen.append(score.item())
print(len(seen))
