"""The average of the weights follows in a hook of the optimizer, which counts its steps."""

import copy

import torch
from torch import nn
from torch.nn import functional


class Average:
    def __init__(self, model, optimizer, decay=0.99):
        self.model, self.copy = model, copy.deepcopy(model).requires_grad_(False)
        self.decay, self.count = decay, 0
        optimizer.register_step_post_hook(self.follow)

    def follow(self, optimizer, args, kwargs):
        self.count += 1  # guilty: the hook runs at the capture, not at a replay
        decay = min(self.decay, self.count / (self.count + 10))
        with torch.no_grad():
            torch._foreach_lerp_(  # guilty: with the decay of the capture
                list(self.copy.parameters()), list(self.model.parameters()), 1.0 - decay
            )


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Mish(), nn.Linear(16, 2)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
average = Average(model, optimizer)
x = torch.randn(8, 6, device="cuda")
y = torch.randint(2, (8,), device="cuda")


def step():
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()

for epoch in range(2):
    for _ in range(4):
        x.normal_()
        y.random_(2)
        graph.replay()
    with torch.no_grad():
        print(epoch, loss.item(), functional.cross_entropy(average.copy(x), y).item())
