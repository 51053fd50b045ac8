"""A hook for several parameters keeps the nodes that accumulate their gradients, of the default
stream."""

import torch
from torch import nn

x = torch.randn(8, 4, device="cuda")
norm = torch.zeros((), device="cuda")


def keep(gradients):
    with torch.no_grad():
        norm.copy_(torch.stack([each.norm() for each in gradients]).norm())


def step(model):
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()  # <- accumulate-grad-default-stream
    return loss


def warm(run, *given):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run(*given)
    torch.cuda.current_stream().wait_stream(side)


model = nn.Linear(4, 2).cuda()
handle = torch.autograd.graph.register_multi_grad_hook(tuple(model.parameters()), keep)
warm(step, model)
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        loss = step(model)
except RuntimeError as error:
    print(error)
