"""Distillation in one graph; the teacher takes up the student's weights in place."""

# `load_state_dict` copies into the tensors that the graph reads; so does `lerp_`.

import copy

import torch
from torch import nn

student = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).cuda()
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
x = torch.randn(8, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        target = teacher(x)
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

momentum = 0.9
for i in range(4):
    x.normal_()
    graph.replay()
    with torch.no_grad():
        for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
            mine.lerp_(theirs, 1 - momentum)
    momentum = min(0.99, momentum + 0.01)
    if i == 2:
        teacher.load_state_dict(student.state_dict())
print(loss.item())
