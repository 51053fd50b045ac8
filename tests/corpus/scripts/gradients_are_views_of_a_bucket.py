"""Gradients are views of one bucket before the graph of forward and backward is captured."""

import torch
from torch import nn
from torch.nn import functional


class Bucket:
    def __init__(self, parameters):
        parameters = [each for each in parameters if each.requires_grad]
        sizes = [each.numel() for each in parameters]
        self.buffer = torch.zeros(sum(sizes), device="cuda")
        for parameter, view in zip(parameters, self.buffer.split(sizes), strict=True):
            parameter.grad = view.view_as(parameter)

    def clear(self):
        self.buffer.zero_()

    def reduce(self, world_size=2):
        self.buffer.div_(world_size)


model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
bucket = Bucket(model.parameters())
x = torch.zeros(8, 6, device="cuda")
y = torch.zeros(8, dtype=torch.long, device="cuda")


def forward_backward():
    bucket.clear()
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
    optimizer.zero_grad(set_to_none=False)
print(loss.item())
