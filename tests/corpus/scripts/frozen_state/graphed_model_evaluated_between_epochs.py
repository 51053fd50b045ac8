"""A model from `make_graphed_callables` is put into eval mode between the epochs."""

# In eval mode the module's forward is the original one: the flag differs from that of the capture.

import torch
from torch import nn

net = nn.Sequential(
    nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2)
).cuda()
net = torch.cuda.make_graphed_callables(net, (torch.randn(16, 8, device="cuda"),))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
held_out = torch.randn(5, 8, device="cuda")

for epoch in range(2):
    net.train()
    for _ in range(2):
        optimizer.zero_grad()
        loss = net(torch.randn(16, 8, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(epoch, loss.item(), net(held_out).sum().item())
