"""Forward noising in the captured training step, with the step's beta from a numpy table."""

# `betas[t]` is a numpy scalar, which becomes a kernel argument; `t` is a global that the loop sets.

import numpy as np
import torch
from torch import nn

betas = np.linspace(1e-2, 0.5, 10)
t = 0
model = nn.Linear(4, 4).cuda()
x = torch.ones(8, 4, device="cuda")


def noised():
    noise = torch.randn_like(x)
    return x * float(np.sqrt(1 - betas[t])) + noise * float(
        np.sqrt(betas[t])
    )  # guilty: the beta of the capture


with torch.no_grad():
    model(noised())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(noised())

for t in range(10):  # guilty: replays do not see it
    graph.replay()
    print(t, y.std().item())
