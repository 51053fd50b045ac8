"""Spiking neurons with a surrogate gradient whose slope grows during the training."""

import torch
from torch import nn


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, potential, slope):
        ctx.save_for_backward(potential)
        ctx.slope = slope
        return (potential > 0).to(potential.dtype)

    @staticmethod
    def backward(ctx, gradient):
        (potential,) = ctx.saved_tensors
        return gradient / (1 + ctx.slope * potential.abs()).square(), None  # guilty: one slope


class Neurons(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(10, 20), nn.Linear(20, 2)
        self.slope = 1.0

    def forward(self, x):
        v, total = 0.0, 0.0
        for _ in range(4):
            v = 0.9 * v + self.inner(x)
            s = Spike.apply(v - 1.0, self.slope)  # guilty: one slope
            v = v - s
            total = total + self.out(s)
        return total / 4


torch.manual_seed(0)
model = Neurons().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
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
    model.slope = 1.0 + epoch * 2.0  # guilty: the graph keeps the first slope
    for _ in range(4):
        graph.replay()
    print(epoch, loss.item())
