"""A segmentation network is evaluated by a graph that counts its confusions."""

import torch
from torch import nn

CLASSES = 4


@torch.no_grad()
def confusions(net, picture, labels):
    predicted = net(picture).argmax(1)
    pairs = labels.flatten() * CLASSES + predicted.flatten()
    return torch.bincount(pairs, minlength=CLASSES**2).view(
        CLASSES, CLASSES
    )  # guilty: reads the largest


torch.manual_seed(0)
net = nn.Conv2d(3, CLASSES, 3, padding=1).cuda().eval()
picture = torch.rand(2, 3, 8, 8, device="cuda")
labels = torch.randint(CLASSES, (2, 8, 8), device="cuda")
confusions(net, picture, labels)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    matrix = confusions(net, picture, labels)
total = torch.zeros(CLASSES, CLASSES, dtype=torch.long, device="cuda")
for _ in range(3):
    picture.copy_(torch.rand(2, 3, 8, 8))
    graph.replay()
    total += matrix
union = total.sum(0) + total.sum(1) - total.diagonal()
print((total.diagonal() / union).mean().item())
