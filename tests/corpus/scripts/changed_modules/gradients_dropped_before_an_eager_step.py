"""Forward and backward are in the graph; zero_grad() outside drops what they write."""

import torch
from torch import nn

model = nn.Linear(2, 1, bias=False, device="cuda")
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
x = torch.ones(1, 2, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad()
        model(x).sum().backward()
torch.cuda.current_stream().wait_stream(side)
optimizer.zero_grad()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    model(x).sum().backward()
for _ in range(2):
    optimizer.zero_grad()  # <- grad-set-to-none-between-replays
    graph.replay()
    optimizer.step()
print(model.weight.sum().item())  # eager: 0.0
