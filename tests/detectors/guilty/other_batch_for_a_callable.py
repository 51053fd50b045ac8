"""The last batch of an epoch is shorter than the sample with which the model was graphed."""

import torch
from torch import nn

model = nn.Linear(4, 2).cuda()
model = torch.cuda.make_graphed_callables(model, (torch.zeros(8, 4, device="cuda"),))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.randn(20, 4).split(8):
    optimizer.zero_grad(set_to_none=True)
    model(batch.cuda()).square().mean().backward()  # <- replay-with-other-shape
    optimizer.step()
