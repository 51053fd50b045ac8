"""A module counts its forwards; the count is printed and names a file, and reaches no op."""

import torch
from torch import nn


class Logged(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.calls = 0
        self.shapes = {}

    def forward(self, x):
        self.calls += 1
        self.shapes[self.calls] = tuple(x.shape)
        if self.calls % 100 == 0:
            print("forward", self.calls)
        return self.linear(x)


model = Logged().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = step()
for _ in range(20):
    x.normal_()
    graph.replay()
    model.calls += 1
print(model.calls, loss.item(), f"step-{model.calls:06d}.pt")
