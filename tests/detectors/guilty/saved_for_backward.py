"""Outputs and updated weights that eager functions save for a backward, which runs too late."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

encoder = nn.Linear(8, 4).cuda().requires_grad_(False)
head = nn.Linear(4, 2).cuda()
scale = nn.Parameter(torch.ones(4, device="cuda"))
x = torch.zeros(3, 8, device="cuda")
filled = torch.zeros(3, 4, device="cuda")


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, weight):
        ctx.save_for_backward(features)
        return features * weight  # <- output-overwritten-by-next-replay

    @staticmethod
    def backward(ctx, gradient):
        (features,) = ctx.saved_tensors
        return None, (gradient * features).sum(0)


encoder(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    features = encoder(x)
    filled.copy_(features.tanh())


def replay():
    x.copy_(torch.randn(3, 8))
    graph.replay()


total = 0
for _ in range(2):
    replay()
    total = total + head(features).square().mean()  # <- output-overwritten-by-next-replay
    total = total + Scaled.apply(features, scale).sum()
    total = total + (filled * scale).mean()  # <- output-overwritten-by-next-replay
    total = (
        total
        + checkpoint(  # <- output-overwritten-by-next-replay
            head, features, use_reentrant=False
        ).mean()
    )
total.backward()

replay()
(first,) = torch.autograd.grad((features * scale).sum(), scale)
loss = (features * scale).sum()  # <- output-overwritten-by-next-replay
replay()
(second,) = torch.autograd.grad(loss, scale)
update = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(update):
    scale.mul_(0.9)
weight = nn.Parameter(torch.ones(4, device="cuda"))
loss = (scale * weight).sum()  # <- output-overwritten-by-next-replay
update.replay()
(third,) = torch.autograd.grad(loss, weight)
print(third.sum().item())
print(first.sum().item(), second.sum().item(), head.weight.grad.sum().item())
