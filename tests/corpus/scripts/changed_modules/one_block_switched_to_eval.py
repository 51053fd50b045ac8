"""A model made with `make_graphed_callables`; one of its blocks is frozen into eval mode later."""

# The graphed forward compares the `training` flag of the module itself with that of the capture
# (torch/cuda/graphs.py, `make_graphed_autograd_function`); those of its children are not compared.

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))  # <- train-eval-toggle


net = Net().cuda().train()
sample = torch.randn(16, 8, device="cuda")
net = torch.cuda.make_graphed_callables(net, (sample,))  # <- warmup-mutates-state
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

for epoch in range(3):
    if epoch == 1:
        net.body.eval()  # <- train-eval-toggle
    optimizer.zero_grad()
    loss = net(torch.randn(16, 8, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
