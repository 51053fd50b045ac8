"""A hook adds the rows of a bank of steering vectors; requests choose their rows."""

import torch
from torch import nn


class Steering:
    def __init__(self, layer, size, rows, slots):
        self.bank = torch.zeros(slots + 1, size, device="cuda")
        self.choice = torch.full((rows,), slots, dtype=torch.int64, device="cuda")
        self.strength = torch.ones(rows, 1, device="cuda")
        layer.register_forward_hook(self._add)

    def _add(self, module, inputs, output):
        return output + self.strength * self.bank[self.choice]

    def store(self, slot, vector):
        self.bank[slot] = vector / vector.norm()

    def choose(self, slots, strengths):
        self.choice[: len(slots)] = torch.tensor(slots, device="cuda")
        self.choice[len(slots) :] = len(self.bank) - 1
        self.strength[: len(slots), 0] = torch.tensor(strengths, device="cuda")


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
model = model.cuda().requires_grad_(False)
steering = Steering(model[2], 16, rows=4, slots=3)
x = torch.zeros(4, 16, device="cuda")
for _ in range(2):
    model(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)

for slot in range(3):
    steering.store(slot, torch.randn(16, device="cuda"))
for slots, strengths in [([0, 1], [1.0, 2.0]), ([2, 2, 0, 1], [0.5, 4.0, 1.0, 1.0]), ([1], [3.0])]:
    steering.choose(slots, strengths)
    x.copy_(torch.randn(4, 16, device="cuda"))
    graph.replay()
    print([round(value, 3) for value in y[: len(slots)].mean(-1).tolist()])
