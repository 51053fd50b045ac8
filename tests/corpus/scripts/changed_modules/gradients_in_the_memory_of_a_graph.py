"""Gradients are zeroed in place, but `.grad` is the memory that the next backward overwrites."""

import torch
from torch import nn

model = nn.Linear(4, 1, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
graphed = torch.cuda.make_graphed_callables(model, (torch.ones(2, 4, device="cuda"),))
for number in (1.0, 3.0):
    optimizer.zero_grad(set_to_none=False)
    loss = graphed(torch.full((2, 4), number, device="cuda")).sum()
    loss.backward()  # <- gradient-accumulation-mismatch
    optimizer.step()
