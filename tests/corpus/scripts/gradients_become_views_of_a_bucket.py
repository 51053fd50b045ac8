"""Forward and backward are a graph; gradients are reduced in one bucket between the replays."""

import torch
from torch import nn
from torch.nn import functional


class Bucket:
    def __init__(self, parameters):
        self.parameters = [each for each in parameters if each.requires_grad]
        self.buffer = None

    def build(self):
        sizes = [each.numel() for each in self.parameters]
        self.buffer = torch.zeros(sum(sizes), device="cuda")
        for parameter, view in zip(self.parameters, self.buffer.split(sizes), strict=True):
            parameter.grad = view.view_as(parameter)  # guilty: the graph writes to the old ones

    def reduce(self, world_size=2):
        if self.buffer is None:
            self.build()
        self.buffer.div_(world_size)


model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
bucket = Bucket(model.parameters())
x = torch.zeros(8, 6, device="cuda")
y = torch.zeros(8, dtype=torch.long, device="cuda")


def forward_backward():
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        forward_backward()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()

for _ in range(6):
    x.copy_(torch.randn(8, 6))
    y.copy_(torch.randint(0, 3, (8,)))
    graph.replay()
    bucket.reduce()
    optimizer.step()
print(loss.item())
