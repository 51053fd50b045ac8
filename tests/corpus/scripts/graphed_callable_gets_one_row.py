"""A regressor from `make_graphed_callables`; the last sample of the set is a batch of one."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
features = torch.randn(9, 4, device="cuda")
model = torch.cuda.make_graphed_callables(model, (torch.zeros(4, 4, device="cuda"),))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

total = 0.0
for rows in features.split(4):
    optimizer.zero_grad()
    predicted = model(rows)  # guilty: the last batch has one row, and is broadcast to four
    loss = predicted.square().sum()
    loss.backward()
    optimizer.step()
    total += loss.item()
print(total)
