"""Lookahead whose slow weights are moved by the loop, after every fifth replay."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
fast = list(model.parameters())
x = torch.randn(16, 8, device="cuda")
y = torch.randn(16, 1, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
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

slow = [p.detach().clone() for p in fast]
for i in range(1, 21):
    x.copy_(torch.randn(16, 8))
    y.copy_(x.sum(1, keepdim=True))
    graph.replay()
    if i % 5 == 0:
        with torch.no_grad():
            torch._foreach_lerp_(slow, fast, 0.5)
            torch._foreach_copy_(fast, slow)
        print(i, loss.item())
