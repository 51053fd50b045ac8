"""Gradients of a graphed callable are added up in memory of the script's own."""

import torch
from torch import nn

model = nn.Linear(4, 1, bias=False).cuda()
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
graphed = torch.cuda.make_graphed_callables(model, (torch.ones(2, 4, device="cuda"),))
for _ in range(2):
    optimizer.zero_grad(set_to_none=False)
    for number in (1.0, 3.0):
        graphed(torch.full((2, 4), number, device="cuda")).sum().backward()
    optimizer.step()
