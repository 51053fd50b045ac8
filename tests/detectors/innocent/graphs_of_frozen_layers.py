"""A graph that trains all layers and one that trains the last, of one line, in turn."""

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


graphs = []
for frozen in (False, True):
    model[0].requires_grad_(not frozen)
    graph, loss = record()
    graph.replay()
    graphs.append((graph, loss))
for step in range(8):
    x.copy_(torch.randn(6, 4))
    graphs[step % 2][0].replay()
print([loss.item() for _, loss in graphs])
