"""A search for the learning rate: it grows until the loss explodes, then all is put back."""

import copy
import itertools

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
rate = torch.tensor(1e-4, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=rate, fused=True)
x = torch.zeros(64, 16, device="cuda")
y = torch.zeros(64, 1, device="cuda")


def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss = functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def batches(count):
    for _ in range(count):
        inputs = torch.randn(64, 16)
        yield inputs, inputs.sum(1, keepdim=True)


initial = copy.deepcopy(model.state_dict())
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
model.load_state_dict(initial)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()


def search(lowest=1e-4, highest=10.0, steps=30):
    best, smoothed, curve = float("inf"), None, []
    value = lowest
    for inputs, targets in batches(steps):
        x.copy_(inputs)
        y.copy_(targets)
        rate.fill_(value)
        graph.replay()
        current = loss.item()
        smoothed = current if smoothed is None else 0.7 * smoothed + 0.3 * current
        best = min(best, smoothed)
        curve.append((value, smoothed))
        if smoothed > 4 * best:
            break
        value *= (highest / lowest) ** (1 / (steps - 1))
    slopes = [after[1] - before[1] for before, after in itertools.pairwise(curve)]
    return curve[slopes.index(min(slopes))][0]


chosen = search()
model.load_state_dict(initial)
rate.fill_(chosen)
for inputs, targets in batches(10):
    x.copy_(inputs)
    y.copy_(targets)
    graph.replay()
print(chosen, loss.item())
