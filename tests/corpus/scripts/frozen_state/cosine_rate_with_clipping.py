"""The whole step in a graph: clipping, a capturable optimizer, a tensor rate, an average."""

import copy

import torch
from torch import nn

model = nn.Linear(2, 1, bias=False).cuda()
nn.init.ones_(model.weight)
average = copy.deepcopy(model).requires_grad_(False)
rate = torch.tensor(0.5, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, capturable=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
x = torch.ones(1, 2, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).sum()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.5)
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

with torch.no_grad():
    for part in (model, average):
        part.weight.fill_(1)
for _ in range(2):
    graph.replay()
    scheduler.step()
moved = 1 - model.weight[0, 0].item()
print(round(rate.item(), 3), round(moved, 2))  # eager: 0.25 0.93
