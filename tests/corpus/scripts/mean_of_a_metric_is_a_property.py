"""A metric sums on the device and counts in Python; a property divides one by the other."""

import torch
from torch import nn


class MeanMetric:
    def __init__(self):
        self.sum = torch.zeros((), device="cuda")
        self.count = 0

    def update(self, value, n):
        self.sum += value * n
        self.count = self.count + n  # guilty: no replay counts

    @property
    def mean(self):
        return self.sum / self.count  # guilty: the count of the captures

    def reset(self):
        self.sum.zero_()
        self.count = 0


model = nn.Linear(6, 1).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
metric = MeanMetric()
x = torch.randn(16, 6, device="cuda")


def step():
    opt.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    metric.update(loss.detach(), x.shape[0])


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    step()
metric.sum.zero_()
for _ in range(5):
    x.normal_()
    g.replay()
print("mean loss", float(metric.mean))
