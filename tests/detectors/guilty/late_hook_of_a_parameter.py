"""Hooks of parameters are registered after the step was captured."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(2, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=False)
    model(x).square().mean().backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()

norms = []
for p in model.parameters():
    p.register_post_accumulate_grad_hook(norms.append)  # <- child-module-hooks-captured
for _ in range(3):
    graph.replay()
print(len(norms), model[0].weight.sum().item())
