"""The loss is a `functools.partial`; when the smoothing changes, the step is captured again."""

# No replay runs between the new partial and the new capture.

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
    loss = criterion(model(x), labels)
    loss.backward()
    optimizer.step()
    return loss


def capture():
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
    return graph, loss


graph, loss = capture()
for epoch in range(4):
    if epoch == 2:
        criterion = functools.partial(criterion.func, label_smoothing=0.0)
        graph, loss = capture()
    x.normal_()
    graph.replay()
    print(epoch, loss.item())
