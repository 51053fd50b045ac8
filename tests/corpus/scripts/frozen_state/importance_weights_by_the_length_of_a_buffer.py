"""Prioritized replay: importance weights depend on how many transitions there are."""

import torch
from torch import nn


class Memory:
    def __init__(self, room, width):
        self.states = torch.zeros(room, width, device="cuda")
        self.returns = torch.zeros(room, device="cuda")
        self.priorities = torch.zeros(room, device="cuda")
        self.room, self.size, self.place = room, 0, 0

    def __len__(self):
        return self.size

    def add(self, state, value):
        self.states[self.place] = state
        self.returns[self.place] = value
        self.priorities[self.place] = 1.0
        self.place = (self.place + 1) % self.room
        self.size = min(self.size + 1, self.room)  # <- python-scalar-frozen

    def sample(self, count, beta=0.4):
        share = self.priorities / self.priorities.sum()
        wanted = torch.rand(count, device="cuda")
        rows = torch.searchsorted(share.cumsum(0), wanted).clamp(max=self.room - 1)
        weights = (len(self) * share[rows]).clamp(min=1e-6) ** -beta  # <- python-scalar-frozen
        return rows, weights


memory = Memory(64, 5)
critic = nn.Linear(5, 1).cuda()
optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)


def learn():
    rows, weights = memory.sample(8)
    error = critic(memory.states[rows]).squeeze(-1) - memory.returns[rows]
    optimizer.zero_grad(set_to_none=True)
    loss = (weights * error.square()).mean()
    loss.backward()
    optimizer.step()
    memory.priorities[rows] = error.detach().abs() + 1e-3
    return loss


for _ in range(12):
    memory.add(torch.randn(5, device="cuda"), 1.0)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        learn()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = learn()

for episode in range(4):
    for _ in range(5):
        memory.add(torch.randn(5, device="cuda"), float(episode))
    graph.replay()
    print(len(memory), loss.item())
