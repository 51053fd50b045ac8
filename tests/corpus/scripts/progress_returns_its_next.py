"""The captured step replaces a frozen dataclass; the field that an op reads stays as it was."""

from dataclasses import dataclass, replace

import torch
from torch import nn


@dataclass(frozen=True)
class Progress:
    step: int = 0
    scale: float = 0.5

    def next(self):
        return replace(self, step=self.step + 1)


class Trainer:
    def __init__(self):
        self.progress = Progress()
        self.model = nn.Linear(4, 4).cuda()
        self.x = torch.randn(2, 4, device="cuda")

    @torch.no_grad()
    def run(self):
        p = self.progress
        self.progress = p.next()
        return self.model(self.x) * p.scale


t = Trainer()
t.run()
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    y = t.run()
for _ in range(4):
    g.replay()
print(y.sum().item())
