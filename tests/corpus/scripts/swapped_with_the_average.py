"""For evaluation the weights and their average exchange their `.data`."""

import copy

import torch
from torch import nn


class Ema:
    def __init__(self, model, decay=0.5):
        self.model, self.decay = model, decay
        self.shadow = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(
            list(self.shadow.parameters()), list(self.model.parameters()), 1 - self.decay
        )

    def swap(self):
        for own, average in zip(self.model.parameters(), self.shadow.parameters(), strict=True):
            own.data, average.data = average.data, own.data  # guilty: the graph keeps the addresses


model = nn.Linear(4, 1).cuda()
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
    ema.swap()
    evaluation.replay()
    print(epoch, score.item())
    ema.swap()
