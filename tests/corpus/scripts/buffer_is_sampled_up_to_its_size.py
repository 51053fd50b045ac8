"""An off-policy learner draws from the part of the buffer that was full when it was captured."""

import torch
from torch import nn


class Buffer:
    def __init__(self, capacity):
        self.states = torch.zeros(capacity, 4, device="cuda")
        self.returns = torch.zeros(capacity, device="cuda")
        self.size = 0

    def extend(self, states, returns):
        end = self.size + len(states)
        self.states[self.size : end] = states
        self.returns[self.size : end] = returns
        self.size = end  # guilty: the graph does not see it

    def sample(self, count):
        rows = torch.randint(0, self.size, (count,), device="cuda")  # guilty: frozen
        return self.states[rows], self.returns[rows]


def collect(buffer):
    states = torch.randn(32, 4, device="cuda")
    buffer.extend(states, states.square().sum(-1))


torch.manual_seed(2)
buffer = Buffer(512)
collect(buffer)
critic = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1)).cuda()
optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3, capturable=True)


def update():
    states, returns = buffer.sample(16)
    optimizer.zero_grad(set_to_none=True)
    loss = (critic(states).squeeze(-1) - returns).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        update()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = update()

for epoch in range(6):
    collect(buffer)
    for _ in range(4):
        graph.replay()
    print(epoch, buffer.size, float(loss))
