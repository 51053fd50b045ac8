"""A module counts its samples; its graphs are made by `make_graphed_callables`."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.samples = 0

    def forward(self, x):
        self.samples += x.shape[0]  # guilty: no replay counts
        return self.l(x).relu()


net = Net().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(4, 8, device="cuda")
net = torch.cuda.make_graphed_callables(net, (x,))
net.samples = 0
for _ in range(5):
    opt.zero_grad()
    net(torch.randn(4, 8, device="cuda")).mean().backward()
    opt.step()
print("samples", net.samples)  # guilty: 0
