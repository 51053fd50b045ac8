"""A recurrent policy keeps its state as an attribute, which every call replaces."""

import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.head = nn.Linear(8, 2)
        self.state = torch.zeros(2, 8, device="cuda")

    def forward(self, x):
        self.state = self.cell(x, self.state)  # guilty: replays begin at the same state
        return self.head(self.state)


policy = Recurrent().cuda()
obs = torch.zeros(2, 4, device="cuda")
with torch.no_grad():
    policy(obs)
    policy.state = torch.zeros(2, 8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action = policy(obs)
for step in range(4):
    obs.fill_(float(step))
    graph.replay()
    print(action[0].tolist())
