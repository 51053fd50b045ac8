"""GradScaler decides on the host whether the optimizer steps."""

import torch
from torch import nn

model = nn.Linear(2, 1, bias=False).cuda()
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
x = torch.ones(1, 2, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.float16, cache_enabled=False):
        loss = model(x).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # guilty: reads whether a gradient overflowed
    scaler.update()


step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
graph.replay()
print(model.weight.tolist())  # eager: [[0.0, 0.0]]
