"""The loss is a `functools.partial`; the label smoothing is lowered by making it again."""

# The captured kernels got label_smoothing=0.1; the new partial is never called by a replay.

import functools

import torch
from torch import nn

model = nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(16, 8, device="cuda")
labels = torch.randint(0, 4, (16,), device="cuda")
criterion = functools.partial(nn.functional.cross_entropy, label_smoothing=0.1)


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(x), labels)  # <- control-flow-frozen
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

for epoch in range(4):
    if epoch == 2:
        criterion = functools.partial(criterion.func, label_smoothing=0.0)  # <- control-flow-frozen
    x.normal_()
    graph.replay()
    print(epoch, loss.item())
