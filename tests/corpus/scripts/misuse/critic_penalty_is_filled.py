"""The weight of a gradient penalty is a tensor that the loop fills."""

import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(8, 32), nn.Softplus(), nn.Linear(32, 1)).cuda()
optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
real = torch.randn(16, 8, device="cuda")
fake = torch.randn(16, 8, device="cuda")
weight = torch.full((), 10.0, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    mix = torch.rand(16, 1, device="cuda")
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    norm = slope.norm(dim=1)
    loss = critic(fake).mean() - critic(real).mean()
    (loss + weight * (norm - 1).square().mean()).backward()
    optimizer.step()
    return norm.detach().mean()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    norm = step()

current = 10.0
for _ in range(20):
    real.copy_(torch.randn(16, 8) + 2)
    fake.copy_(torch.randn(16, 8))
    graph.replay()
    if abs(norm.item() - 1) > 0.2:
        current *= 1.1
        weight.fill_(current)
