"""A trainer runs two steps eagerly and captures the third, which nobody replays."""

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


graph, static_loss, losses = None, None, []
for step in range(6):
    x.copy_(torch.randn(16, 4, device="cuda"))
    if step < 2:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = train_step()
        torch.cuda.current_stream().wait_stream(side)
    elif graph is None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # <- capture-does-not-execute
            static_loss = train_step()
        loss = static_loss
    else:
        graph.replay()
        loss = static_loss
    losses.append(loss.item())  # <- capture-does-not-execute
print([round(each, 4) for each in losses])
