"""Gradients are tamed by hooks for the first steps only; the training step is one graph."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(8, 4, device="cuda")
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
norms = torch.zeros(4, device="cuda")


def halve(parameter):
    parameter.grad.mul_(0.5)


def note_norm(gradient):
    norms[0].copy_(gradient.norm())


damping = model[1].register_full_backward_hook(lambda _module, inputs, _outputs: (inputs[0] / 2,))
clamping = model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
halving = model[2].weight.register_post_accumulate_grad_hook(halve)
noting = model[2].bias.register_hook(note_norm)


def step():
    optimizer.zero_grad(set_to_none=False)
    model(x).square().mean().backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()


def train(steps):
    for _ in range(steps):
        x.normal_()
        graph.replay()
    print(model(x).square().mean().item(), norms[0].item())


train(4)
noting.remove()
train(2)
damping.remove()  # guilty: replays still halve the gradient
train(4)
clamping.remove()  # guilty: replays still clamp the gradient
train(4)
halving.remove()  # guilty: replays still halve the gradient of the last layer
train(4)
