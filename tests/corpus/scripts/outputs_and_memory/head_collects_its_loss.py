"""Linear probing: the frozen backbone is a graph, the head trains over four micro-batches."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
backbone = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.AdaptiveAvgPool2d(1)
).cuda()
backbone.eval().requires_grad_(False)
head = nn.Linear(32, 10).cuda()
optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)

images = torch.zeros(8, 3, 32, 32, device="cuda")
backbone(images)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    features = backbone(images).flatten(1)


def micro_batches(count):
    for _ in range(count):
        yield torch.rand(8, 3, 32, 32), torch.randint(0, 10, (8,))


for step in range(4):
    optimizer.zero_grad()
    losses = []
    for batch, labels in micro_batches(4):
        images.copy_(batch)
        graph.replay()
        losses.append(
            functional.cross_entropy(head(features), labels.cuda())
        )  # <- output-overwritten-by-next-replay
    loss = torch.stack(losses).mean()
    loss.backward()  # <- output-overwritten-by-next-replay
    optimizer.step()
    print(step, loss.item())
