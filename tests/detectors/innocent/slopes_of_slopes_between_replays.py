"""A penalty on slopes weighs the losses of a captured step. Its second derivatives belong to nodes
that a backward has made, on the thread of autograd, which counts them by itself."""

import torch
from torch import nn

torch.manual_seed(0)
field = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
optimizer = torch.optim.SGD(field.parameters(), lr=1e-2)
inside = torch.rand(16, 2, device="cuda", requires_grad=True)
weight = torch.ones((), device="cuda")


def penalty():
    value = field(inside).pow(3).softmax(0).log().pow(3).square()
    (slope,) = torch.autograd.grad(value.sum(), inside, create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 0].sum(), inside, create_graph=True)
    return (bend[:, 0] - slope[:, 1]).square().mean()


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = weight * field(inside).square().mean()
    loss.backward(inputs=list(field.parameters()))
    optimizer.step()
    return loss.detach()


def weigh():
    slopes = torch.autograd.grad(penalty(), list(field.parameters()), allow_unused=True)
    weight.lerp_(torch.cat([each.flatten() for each in slopes if each is not None]).norm(), 0.1)


for _ in range(5):
    weigh()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()

losses = []
for _ in range(10):
    weigh()
    losses += [field(inside).mean().item() for _ in range(40)]
    with torch.no_grad():
        inside.uniform_()
    graph.replay()
print(weight.item(), loss.item())
