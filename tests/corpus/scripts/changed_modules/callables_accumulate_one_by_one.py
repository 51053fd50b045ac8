"""A graphed callable is called for two micro-batches, each with a backward of its own."""

import torch
from torch import nn

model = nn.Linear(4, 1, bias=False).cuda()
nn.init.ones_(model.weight)
sample = torch.ones(2, 4, device="cuda")
graphed = torch.cuda.make_graphed_callables(model, (sample,))
for number in (1.0, 3.0):
    loss = graphed(torch.full((2, 4), number, device="cuda")).sum()
    loss.backward()  # <- gradient-accumulation-mismatch
print(model.weight.grad.sum().item())  # eager: 32.0
