"""Dropout is annealed during training, as in the recipe; the graph keeps the first rate."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(32, 64)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.inp(x))))


model = Net().cuda()
static = torch.randn(16, 32, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side), torch.no_grad():
    for _ in range(3):
        model(static)
torch.cuda.current_stream().wait_stream(side)
g = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(g):
    logits = model(static)
for epoch in range(4):
    model.drop.p = 0.5 - 0.1 * epoch  # <- python-scalar-frozen
    static.copy_(torch.randn(16, 32, device="cuda"))
    g.replay()
print(logits.sum().item())
