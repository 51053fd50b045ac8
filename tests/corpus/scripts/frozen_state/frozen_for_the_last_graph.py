"""A layer is frozen, and the next graph trains the others; the first graph is still there."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(6, 4, device="cuda")


def learn():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def record():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            learn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = learn()
    return graph, loss


graphs = [record()]
for step in range(8):
    if step == 4:
        model[0].requires_grad_(False)
        optimizer.zero_grad(set_to_none=True)
        graphs.append(record())
    x.copy_(torch.randn(6, 4))
    graphs[-1][0].replay()
print([loss.item() for _, loss in graphs])
