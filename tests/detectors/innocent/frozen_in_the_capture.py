"""A discriminator needs no gradients in the step of the generator, only while that is captured."""

import torch
from torch import nn

generator, discriminator = nn.Linear(4, 4).cuda(), nn.Linear(4, 1).cuda()
z, real = torch.randn(8, 4, device="cuda"), torch.randn(8, 4, device="cuda")


def generator_step():
    loss = -discriminator(generator(z)).mean()
    loss.backward()
    return loss


def discriminator_step():
    with torch.no_grad():
        fake = generator(z)
    loss = (discriminator(fake) - discriminator(real)).mean()
    loss.backward()
    return loss


graphs = []
for step, model, other in (
    (generator_step, generator, discriminator),
    (discriminator_step, discriminator, generator),
):
    other.requires_grad_(False)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    graphs.append((graph, loss))
    other.requires_grad_(True)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, discriminator)]
for _ in range(4):
    z.copy_(torch.randn(8, 4, device="cuda"))
    for (graph, _loss), optimizer in zip(graphs, optimizers, strict=True):
        graph.replay()
        optimizer.step()
print(loss.item())
