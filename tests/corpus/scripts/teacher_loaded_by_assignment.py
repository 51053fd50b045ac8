"""Distillation: the graph runs teacher and student; the teacher is refreshed from a checkpoint."""

# `assign=True` makes the loaded tensors the parameters instead of copying into the old ones: the
# graph reads the old ones.

import copy

import torch
from torch import nn

student = nn.Linear(4, 4).cuda()
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
x = torch.randn(8, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        target = teacher(x)  # guilty: reads the parameters that were there during the capture
    loss = nn.functional.mse_loss(student(x), target + 1)
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
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = step()

for _ in range(3):
    for _ in range(2):
        x.normal_()
        graph.replay()
    weights = {name: value.detach().clone() for name, value in student.state_dict().items()}
    teacher.load_state_dict(weights, assign=True)  # guilty: other tensors than those of the graph
print(loss.item())
