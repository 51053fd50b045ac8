"""A training graph updates an average of the model, which another graph evaluates."""

import copy

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).cuda()
average = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for mine, other in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(other, 0.1)
        for mine, other in zip(average.buffers(), model.buffers(), strict=True):
            mine.copy_(other)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
training, evaluation = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(training):
    step()
with torch.no_grad():
    average(x)
    with torch.cuda.graph(evaluation):
        best = average(x).argmax(-1)
for _ in range(3):
    x.copy_(torch.randn(4, 8))
    training.replay()
    evaluation.replay()
    print(best.tolist())
