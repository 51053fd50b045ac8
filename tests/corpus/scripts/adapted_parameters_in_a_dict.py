"""Meta-learning: the task loss is a graph; the inner loop puts adapted weights into its dict."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
fast = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
x, y = torch.randn(10, 4, device="cuda"), torch.randn(10, 1, device="cuda")


def loss_and_gradients():
    loss = nn.functional.mse_loss(functional_call(model, fast, (x,)), y)
    return loss.detach(), torch.autograd.grad(loss, list(fast.values()))


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        loss_and_gradients()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss, gradients = loss_and_gradients()

for step in range(5):
    graph.replay()
    for (name, weight), gradient in zip(list(fast.items()), gradients, strict=True):
        adapted = (weight - 0.1 * gradient).detach().requires_grad_()
        fast[name] = adapted  # guilty: the graph has the first weights
    print(step, loss.item())
