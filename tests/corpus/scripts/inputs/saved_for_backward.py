"""Outputs that eager functions save for a backward: it runs before the next replay, they save a
copy, or nothing. An eager backward of captured ops sees what the last replay wrote, on purpose."""

import torch
from torch import nn

encoder = nn.Linear(8, 4).cuda().requires_grad_(False)
head = nn.Linear(4, 2).cuda()
bias = nn.Parameter(torch.zeros(4, device="cuda"))
x = torch.zeros(3, 8, device="cuda")
encoder(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    features = encoder(x)

weight = nn.Parameter(torch.ones(4, device="cuda"))
trained = torch.cuda.CUDAGraph()
with torch.cuda.graph(trained, pool=graph.pool()):
    loss_of_graph = (features * weight).square().sum()
other = torch.cuda.CUDAGraph()
with torch.cuda.graph(other):
    features_of_other = encoder(x).tanh()


def replay(which=graph):
    x.copy_(torch.randn(3, 8))
    which.replay()


copied = added = 0
for _ in range(3):
    replay()
    copied = copied + head(features.clone()).square().mean()
    added = added + (features + bias).mean()
    head(features).square().mean().backward()
copied.backward()
added.backward()

# Only the other graph is replayed in between.
replay(other)
late = head(features_of_other).mean()
replay(graph)
late.backward()

# What ran without gradients saves nothing.
for _ in range(2):
    replay()
    with torch.no_grad():
        scores = head(features)
    target = head(torch.randn(3, 4, device="cuda"))
    replay()
    (target - scores).square().mean().backward()

for _ in range(3):
    replay()
    trained.replay()
    (gradient,) = torch.autograd.grad(loss_of_graph, weight, retain_graph=True)
    print(gradient.sum().item(), head.weight.grad.sum().item())
