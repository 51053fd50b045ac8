"""A graphed callable is called for two micro-batches before one backward."""

import torch
from torch import nn

model = nn.Linear(4, 1, bias=False).cuda()
nn.init.ones_(model.weight)
sample = torch.ones(2, 4, device="cuda")
graphed = torch.cuda.make_graphed_callables(model, (sample,))
first = graphed(torch.full((2, 4), 1.0, device="cuda"))
second = graphed(torch.full((2, 4), 3.0, device="cuda"))  # <- graphed-callable-called-twice
(first.sum() + second.sum()).backward()
print(model.weight.grad.sum().item())  # eager: 32.0
