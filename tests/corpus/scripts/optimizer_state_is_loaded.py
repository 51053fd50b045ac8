"""Training goes back to the last good checkpoint; the optimizer's state gets new tensors."""

# `Optimizer.load_state_dict` puts other tensors into the state. The graph goes on with the old
# moments.

import copy

import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
x = torch.randn(4, 8, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
good = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for i in range(6):
    x.normal_()
    graph.replay()
    if i == 3:
        model.load_state_dict(good["model"])
        optimizer.load_state_dict(good["optimizer"])  # guilty: other tensors
print(loss.item())
