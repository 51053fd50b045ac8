"""Weights are stored, overwritten by their average, evaluated by a graph and restored."""

import copy
from contextlib import contextmanager

import torch
from torch import nn


class Ema:
    def __init__(self, model, decay=0.5):
        self.params = list(model.parameters())
        self.shadow = [p.detach().clone() for p in self.params]
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.shadow, self.params, 1 - decay)

    @contextmanager
    def average_parameters(self):
        stored = [p.detach().clone() for p in self.params]
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.shadow)
        try:
            yield
        finally:
            for p, old in zip(self.params, stored, strict=True):
                p.data.copy_(old)


model = nn.Linear(4, 1).cuda()
first = copy.deepcopy(model.state_dict())
ema = Ema(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 4, device="cuda")
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()
    evaluation = torch.cuda.CUDAGraph()
    with torch.cuda.graph(evaluation):
        score = model(x).square().mean()
for epoch in range(3):
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        ema.update()
    with ema.average_parameters():
        evaluation.replay()
        print(epoch, score.item())
model.load_state_dict(first)
evaluation.replay()
print(score.item())
