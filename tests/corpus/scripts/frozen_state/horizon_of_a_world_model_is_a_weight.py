"""An actor learns in imagination; the graph has all steps, and weights say how many count."""

import torch
from torch import nn

longest = 6
dynamics = nn.GRUCell(2, 8).cuda().requires_grad_(False)
reward = nn.Linear(8, 1).cuda().requires_grad_(False)
actor = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.Linear(16, 2), nn.Tanh()).cuda()
optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3, capturable=True)
start = torch.randn(6, 8, device="cuda")
weights = torch.zeros(longest, device="cuda")


def set_horizon(horizon, discount=0.95):
    powers = [discount**n if n < horizon else 0.0 for n in range(longest)]
    weights.copy_(torch.tensor(powers))


def imagine():
    state, rewards = start, []
    for _ in range(longest):
        state = dynamics(actor(state), state)
        rewards.append(reward(state).mean())
    loss = -(torch.stack(rewards) * weights).sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss


set_horizon(2)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        imagine()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = imagine()

for horizon in (2, 4, 6):
    set_horizon(horizon)
    for _ in range(3):
        start.copy_(torch.randn(6, 8))
        graph.replay()
    print(horizon, loss.item())
