"""The rate of the schedule is written into the parameter groups before each replay."""

import math

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).cuda()
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.1, momentum=0.9
)  # <- optimizer-without-capture-guard
x = torch.randn(4, 8, device="cuda")
max_iters, warmup_iters, max_lr, min_lr = 8, 2, 0.1, 0.01


def get_lr(it):
    if it < warmup_iters:
        return max_lr * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (max_lr - min_lr)


def train_step():
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()  # <- optimizer-without-capture-guard
    optimizer.zero_grad(set_to_none=True)
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()

for it in range(max_iters):
    lr = get_lr(it)
    for group in optimizer.param_groups:
        group["lr"] = lr  # <- optimizer-without-capture-guard
    x.normal_()
    graph.replay()
print(f"{loss.item():.4f} {lr:.4f}")
