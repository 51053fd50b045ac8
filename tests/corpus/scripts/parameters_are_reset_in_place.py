"""Restarts: parameters and running statistics are reset in place, and the callable stays."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).cuda()
sample = torch.randn(4, 8, device="cuda")
graphed = torch.cuda.make_graphed_callables(net, (sample,))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def restart():
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


for attempt in range(3):
    restart()
    for _ in range(3):
        x, y = torch.randn(4, 8, device="cuda"), torch.randint(2, (4,), device="cuda")
        loss = functional.cross_entropy(graphed(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(attempt, loss.item())
