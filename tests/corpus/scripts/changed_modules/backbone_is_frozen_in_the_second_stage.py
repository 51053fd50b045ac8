"""In its second stage, a detector trains its head only."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
backbone, head = nn.Linear(16, 32).cuda(), nn.Linear(32, 4).cuda()
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
x, y = torch.randn(32, 16, device="cuda"), torch.randint(0, 4, (32,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(head(backbone(x).relu()), y)
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
with torch.cuda.graph(graph):
    loss = step()

for stage in (1, 2):
    if stage == 2:
        backbone.requires_grad_(False)  # <- parameters-added-or-removed
    for _ in range(5):
        graph.replay()
    print(stage, loss.item(), backbone.weight.norm().item())
