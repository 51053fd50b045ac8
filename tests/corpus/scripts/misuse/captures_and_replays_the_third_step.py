"""A trainer runs two steps eagerly, captures the third and replays it at once."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.zeros(16, 4, device="cuda")


def train_step():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


graph, losses = None, []
side = torch.cuda.Stream()
for step in range(6):
    x.copy_(torch.randn(16, 4, device="cuda"))
    if step < 2:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            losses.append(train_step().item())
        torch.cuda.current_stream().wait_stream(side)
    else:
        if graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = train_step()
        graph.replay()
        losses.append(loss.item())
print([round(each, 4) for each in losses])
