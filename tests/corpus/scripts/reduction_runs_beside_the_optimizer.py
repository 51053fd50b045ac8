"""Gradients are averaged on a stream for communication; backward and optimizer are two graphs."""

import torch
from torch import nn
from torch.nn import functional


class Reducer:
    def __init__(self, parameters, world_size):
        self.parameters, self.world_size = list(parameters), world_size
        self.stream = torch.cuda.Stream()
        self.sizes = [p.numel() for p in self.parameters]
        self.flat = torch.zeros(sum(self.sizes), device="cuda")

    def start(self):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            torch.cat([p.grad.flatten() for p in self.parameters], out=self.flat)
            self.flat.div_(self.world_size)  # stands for an all-reduce over one process
            for p, part in zip(self.parameters, self.flat.split(self.sizes), strict=True):
                p.grad.copy_(part.view_as(p))

    def wait(self):
        torch.cuda.current_stream().wait_stream(self.stream)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 6)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
reducer = Reducer(model.parameters(), world_size=4)
x = torch.zeros(16, 24, device="cuda")
y = torch.zeros(16, dtype=torch.int64, device="cuda")


def forward_backward():
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        forward_backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)
backward, update = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(backward):
    loss = forward_backward()
with torch.cuda.graph(update):
    optimizer.step()

for step in range(5):
    x.copy_(torch.randn(16, 24))
    y.copy_(torch.randint(0, 6, (16,)))
    backward.replay()
    reducer.start()
    update.replay()  # guilty: the gradients are still being averaged
    reducer.wait()
    print(step, loss.item())
