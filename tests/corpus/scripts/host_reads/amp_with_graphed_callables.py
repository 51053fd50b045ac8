"""Partial capture under autocast with a scaler, as in PyTorch's notes."""

from itertools import chain

import torch
from torch import nn

first, second, third = (nn.Linear(2, 2, bias=False).cuda() for _ in range(3))
for module in (first, second, third):
    nn.init.eye_(module.weight)
optimizer = torch.optim.SGD(
    chain(first.parameters(), second.parameters(), third.parameters()), lr=0.5
)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
x = torch.ones(1, 2, device="cuda")
h = torch.ones(1, 2, device="cuda", requires_grad=True)

with torch.amp.autocast("cuda", torch.float16, cache_enabled=False):
    first = torch.cuda.make_graphed_callables(first, (x,))
    second = torch.cuda.make_graphed_callables(second, (h.half().detach().requires_grad_(),))
    third = torch.cuda.make_graphed_callables(third, (h.half().detach().requires_grad_(),))

losses = []
for sign in (1.0, -1.0):
    optimizer.zero_grad(set_to_none=True)
    with torch.amp.autocast("cuda", torch.float16, cache_enabled=False):
        tmp = first(torch.full((1, 2), sign, device="cuda"))
        tmp = second(tmp) if tmp.sum().item() > 0 else third(tmp)
        loss = (tmp.float() - 1).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
print(losses, scaler.get_scale())  # eager: [0.0, 4.0] 2.0
