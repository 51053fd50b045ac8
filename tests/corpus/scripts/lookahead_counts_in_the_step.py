"""Lookahead: every fifth step the slow weights move toward the fast ones."""

import torch
from torch import nn


class Lookahead:
    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha, self.count = optimizer, k, alpha, 0
        self.fast = [p for group in optimizer.param_groups for p in group["params"]]
        self.slow = [p.detach().clone() for p in self.fast]

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        self.count += 1  # guilty: counted on the host
        if self.count % self.k == 0:  # guilty: decided in the capture
            torch._foreach_lerp_(self.slow, self.fast, self.alpha)
            torch._foreach_copy_(self.fast, self.slow)


torch.manual_seed(0)
model = nn.Linear(8, 1).cuda()
optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
x = torch.randn(16, 8, device="cuda")
y = torch.randn(16, 1, device="cuda")


def step():
    model.zero_grad(set_to_none=True)
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(20):
    x.copy_(torch.randn(16, 8))
    y.copy_(x.sum(1, keepdim=True))
    graph.replay()
print(loss.item())
