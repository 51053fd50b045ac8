"""Hooks of parameters that a replay need not call: autograd accumulates gradients after it, or the
hook was there before the capture, or has gone again."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.ones(2, 4, device="cuda")


def captured(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


# A graphed callable: its gradients are accumulated eagerly.
layer = nn.Linear(4, 4).cuda()
graphed = torch.cuda.make_graphed_callables(layer, (torch.ones(2, 4, device="cuda"),))
norms = []
layer.weight.register_hook(lambda grad: norms.append(grad.norm().item()))
for _ in range(3):
    layer.zero_grad(set_to_none=True)
    graphed(x).square().sum().backward()
print(norms)

# Registered before the capture, with tensor ops alone.
model = nn.Linear(4, 1).cuda()
model.weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    optimizer.zero_grad(set_to_none=False)
    model(x).square().mean().backward()
    optimizer.step()


graph = captured(step)
# One that has gone when the graph is replayed.
handle = model.bias.register_hook(lambda grad: grad * 2)
handle.remove()
for _ in range(3):
    graph.replay()
print(model.weight.sum().item())

# A forward alone: the backward is not captured.
frozen = nn.Linear(4, 4).cuda()


def forward():
    with torch.no_grad():
        return frozen(x)


graph = captured(forward)
frozen.weight.register_hook(lambda grad: print(grad.sum().item()))
graph.replay()
frozen(x).sum().backward()
