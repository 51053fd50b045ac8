"""Spiking neurons whose surrogate gradient gets steeper by a buffer."""

import torch
from torch import nn


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, potential, slope):
        ctx.save_for_backward(potential, slope)
        return (potential > 0).to(potential.dtype)

    @staticmethod
    def backward(ctx, gradient):
        potential, slope = ctx.saved_tensors
        return gradient / (1 + slope * potential.abs()).square(), None


class Neurons(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(10, 20), nn.Linear(20, 2)
        self.register_buffer("slope", torch.ones(()))

    def forward(self, x):
        v, total = 0.0, 0.0
        for _ in range(4):
            v = 0.9 * v + self.inner(x)
            s = Spike.apply(v - 1.0, self.slope)
            v = v - s
            total = total + self.out(s)
        return total / 4


torch.manual_seed(0)
model = Neurons().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)
x = torch.randn(16, 10, device="cuda")
y = torch.randint(2, (16,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for epoch in range(5):
    model.slope.fill_(1.0 + epoch * 2.0)
    for _ in range(4):
        graph.replay()
    print(epoch, loss.item())
