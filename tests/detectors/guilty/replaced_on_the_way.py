"""What leads to a number or an optimizer is replaced: settings, and what has the optimizer."""

import dataclasses

import torch
from torch import nn


@dataclasses.dataclass(frozen=True)
class Settings:
    strength: float


@dataclasses.dataclass
class State:
    optimizer: torch.optim.Optimizer


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.settings = Settings(0.5)
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x) * self.settings.strength


layer = Layer().cuda()
state = State(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9))
x = torch.zeros(8, 4, device="cuda")


def step():
    state.optimizer.zero_grad(set_to_none=True)
    loss = layer(x).square().mean()
    loss.backward()
    state.optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()

for epoch in range(4):
    if epoch == 2:
        layer.settings = dataclasses.replace(  # <- python-scalar-frozen
            layer.settings, strength=0.1
        )
        state = State(  # <- metadata-address-changed
            torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        )
    x.copy_(torch.randn(8, 4))
    graph.replay()
    print(loss.item())
