"""Forward and backward are captured with gradients that are zeroed in place; the script gives the
parameters others, which frees them."""

import torch
from torch import nn

model = nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.zeros(8, 4, device="cuda")


def forward_backward():
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()
    loss = model(x).square().sum()
    loss.backward()
    return loss


forward_backward()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()

for number in range(4):
    x.normal_()
    graph.replay()
    if number == 0:
        flat = torch.zeros(10, device="cuda")
        for p, part in zip(model.parameters(), flat.split([8, 2]), strict=True):
            p.grad = part.view_as(p)  # <- grad-set-to-none-between-replays
    optimizer.step()
print(loss.item())
