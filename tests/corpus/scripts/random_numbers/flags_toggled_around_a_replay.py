"""Gradients of the discriminator are off in each replay, as at the capture."""

import torch
from torch import nn

generator, discriminator = nn.Linear(4, 4).cuda(), nn.Linear(4, 1).cuda()
z = torch.randn(8, 4, device="cuda")


def generator_step():
    loss = -discriminator(generator(z)).mean()
    loss.backward()
    return loss


discriminator.requires_grad_(False)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    generator_step()
torch.cuda.current_stream().wait_stream(side)
generator.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = generator_step()
generator_optimizer, discriminator_optimizer = (
    torch.optim.SGD(generator.parameters(), lr=0.1),
    torch.optim.SGD(discriminator.parameters(), lr=0.1),
)
for _ in range(4):
    discriminator.requires_grad_(True)
    discriminator_optimizer.zero_grad(set_to_none=True)
    discriminator(torch.randn(8, 4, device="cuda")).mean().backward()
    discriminator_optimizer.step()
    discriminator.requires_grad_(False)
    z.normal_()
    graph.replay()
    generator_optimizer.step()
print(loss.item())
