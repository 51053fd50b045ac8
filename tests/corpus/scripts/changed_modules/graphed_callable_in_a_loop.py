"""make_graphed_callables around one block of a model."""

import torch
from torch import nn

block = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU()).cuda()
nn.init.eye_(block[0].weight)
block = torch.cuda.make_graphed_callables(block, (torch.randn(2, 4, device="cuda"),))
optimizer = torch.optim.SGD(block.parameters(), lr=0.5)

for _ in range(2):
    out = block(torch.ones(2, 4, device="cuda"))
    optimizer.zero_grad()
    out[0, 0].backward()
    optimizer.step()
print(block[0].weight[0, 0].item())  # eager: 0.5
