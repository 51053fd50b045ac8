"""Captured code counts tokens, and so does the runner after each replay."""

import torch
from torch import nn


class Runner:
    def __init__(self):
        self.model = nn.Linear(8, 8).cuda().eval()
        self.x = torch.randn(4, 8, device="cuda")
        self.tokens = 0

    @torch.no_grad()
    def forward(self):
        self.tokens += self.x.shape[0]
        return self.model(self.x)

    def capture(self):
        self.forward()
        torch.cuda.synchronize()
        self.g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.g):
            self.y = self.forward()
        self.tokens = 0

    def replay(self):
        self.g.replay()
        self.tokens += self.x.shape[0]


r = Runner()
r.capture()
for _ in range(5):
    r.replay()
print(r.tokens, r.y.sum().item())
