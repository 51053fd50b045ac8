"""The data lives on the device; the captured step gathers its rows by a permutation."""

import torch
from torch import nn

torch.manual_seed(0)
data, targets = torch.randn(64, 8, device="cuda"), torch.randn(64, 1, device="cuda")
order = torch.randperm(64, device="cuda")
cursor = torch.zeros((), dtype=torch.int64, device="cuda")
offsets = torch.arange(16, device="cuda")
model = nn.Linear(8, 1).cuda()


def train_step():
    rows = order[(cursor + offsets) % 64]
    cursor.add_(16)
    loss = nn.functional.mse_loss(model(data[rows]), targets[rows])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.sub_(gradient, alpha=0.05)
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()

for epoch in range(3):
    cursor.zero_()
    order = torch.randperm(64, device="cuda")  # guilty: the graph reads the first permutation
    for _ in range(4):
        graph.replay()
    print(epoch, loss.item())
