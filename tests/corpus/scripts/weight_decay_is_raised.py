"""The whole step is captured, and the weight decay is raised afterwards."""

import torch
from torch import nn

model = nn.Linear(1, 1, bias=False).cuda()
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.0)
x = torch.zeros(1, 1, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=False)
    model(x).sum().backward()
    optimizer.step()  # guilty: the step of the capture has its weight decay


step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()

for epoch in range(2):
    optimizer.param_groups[0]["weight_decay"] = float(epoch)  # guilty: replays do not see it
    graph.replay()
print(model.weight.item())  # eager: 0.5
