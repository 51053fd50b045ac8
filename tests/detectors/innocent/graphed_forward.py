"""The forward of a graphed module is called without its __call__, next to other modules."""

import torch
from torch import nn

device = torch.device("cuda")
graphed = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(device)
head = nn.Linear(8, 1).to(device)
sample = torch.randn(4, 8, device=device)
graphed = torch.cuda.make_graphed_callables(graphed, (sample,))

for _ in range(3):
    x = torch.randn(4, 8, device=device)
    head(graphed(x)).sum().backward()
    graphed.zero_grad()
    head(graphed.forward(x)).sum().backward()
    graphed.zero_grad()
