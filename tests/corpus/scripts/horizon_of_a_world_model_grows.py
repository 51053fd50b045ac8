"""An actor learns in the imagination of a world model, over a horizon that grows."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    horizon: int = 3
    discount: float = 0.95


config = Config()
dynamics = nn.GRUCell(2, 8).cuda().requires_grad_(False)
reward = nn.Linear(8, 1).cuda().requires_grad_(False)
actor = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.Linear(16, 2), nn.Tanh()).cuda()
optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3, capturable=True)
start = torch.randn(6, 8, device="cuda")


def imagine():
    state, total, weight = start, 0.0, 1.0
    for _ in range(config.horizon):  # guilty: as many steps as in the capture
        state = dynamics(actor(state), state)
        total = total + weight * reward(state)
        weight *= config.discount
    loss = -total.mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        imagine()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = imagine()

for step in range(9):
    start.copy_(torch.randn(6, 8))
    graph.replay()
    if step % 3 == 2:
        config.horizon += 2  # guilty: the graph keeps its steps
        print(config.horizon, loss.item())
