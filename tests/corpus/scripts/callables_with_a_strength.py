"""Two graphed modules whose regularisation strength follows a schedule."""

import torch
from torch import nn


class Penalised(nn.Module):
    def __init__(self, strength):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.options = {"strength": strength}

    def forward(self, x):
        return x * self.weight * self.options["strength"]  # guilty: a number of the capture


parts = Penalised(1.0).cuda(), Penalised(2.0).cuda()
samples = tuple((torch.ones(2, device="cuda", requires_grad=True),) for _ in parts)
encoder, decoder = torch.cuda.make_graphed_callables(parts, samples)

totals = []
for epoch in range(2):
    for part in parts:
        part.options["strength"] += epoch  # guilty: replays do not see it
    loss = decoder(encoder(torch.ones(2, device="cuda"))).sum()
    loss.backward()
    totals.append(loss.item())
print(totals)  # eager: [4.0, 12.0]
