"""A trainer makes snapshots of its weights without stopping the device."""

import io

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 1)).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, capturable=True)
x, y = torch.randn(32, 12, device="cuda"), torch.randn(32, 1, device="cuda")


def step():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
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


def snapshot():
    weights = {k: v.detach().to("cpu", non_blocking=True) for k, v in net.state_dict().items()}
    file = io.BytesIO()
    torch.save(weights, file)  # guilty: the copies may still be under way
    return file.getvalue()


snapshots = []
for i in range(6):
    graph.replay()
    if i % 3 == 2:
        snapshots.append(snapshot())
print([len(s) for s in snapshots], loss.item())
