"""L-BFGS fits an equation; its closure replays a graph of the loss and its gradients."""

import torch
from torch import nn

torch.manual_seed(0)
field = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1)).cuda()
points = torch.linspace(0, 1, 64, device="cuda")[:, None].requires_grad_()
start = torch.zeros(1, 1, device="cuda")


def compute():
    value = field(points)
    (slope,) = torch.autograd.grad(value.sum(), points, create_graph=True)
    residual = (slope + 2 * value).square().mean()
    loss = residual + (field(start) - 1).square().mean()
    loss.backward(inputs=list(field.parameters()))
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        field.zero_grad(set_to_none=True)
        compute()
torch.cuda.current_stream().wait_stream(side)

field.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    static_loss = compute()


def closure():
    graph.replay()
    return static_loss.clone()


optimizer = torch.optim.LBFGS(field.parameters(), lr=0.5, max_iter=8, history_size=5)
for _ in range(3):
    loss = optimizer.step(closure)
    print(f"{loss.item():.5f}")
