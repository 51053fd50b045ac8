"""Point clouds of different sizes are copied through a flat view; a maximum is over all points."""

import torch
from torch import nn

torch.manual_seed(0)
POINTS = 16
lift = nn.Linear(3, 8).cuda().requires_grad_(False)
cloud = torch.zeros(POINTS, 3, device="cuda")
source = torch.randn(POINTS, 3)


def describe():
    return lift(cloud).relu().amax(0)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    describe()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    features = describe()

for count in (16, 4, 9):
    values = source[:count].flatten() * count
    cloud.view(-1)[: 3 * count].copy_(values)  # <- bucket-padding-garbage
    graph.replay()  # <- bucket-padding-garbage
    print([round(each, 3) for each in features.tolist()])
