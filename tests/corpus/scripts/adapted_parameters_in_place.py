"""Meta-learning: the task loss is a graph; weights in its dict are adapted in place."""

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

for task in range(2):
    x.copy_(torch.randn(10, 4, device="cuda"))
    y.copy_(torch.randn(10, 1, device="cuda"))
    with torch.no_grad():
        torch._foreach_copy_(list(fast.values()), list(model.parameters()))
    for _ in range(5):
        graph.replay()
        with torch.no_grad():
            torch._foreach_add_(list(fast.values()), list(gradients), alpha=-0.1)
    print(task, loss.item())
