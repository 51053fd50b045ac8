"""Whole-network capture, as in PyTorch's notes."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(2, 1, bias=False).cuda()
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
x, target = torch.zeros(1, 2, device="cuda"), torch.zeros(1, 1, device="cuda")

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()

for batch in (torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])):
    x.copy_(batch)
    graph.replay()
print(model.weight.tolist())  # eager: [[0.5, 0.5]]
