"""A recurrent policy keeps its state in a tuple, which each step replaces; the state of the capture
stays alive in the record of the episode."""

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)
        self.head = nn.Linear(8, 2)
        self.state = None

    def forward(self, x):
        self.state = self.cell(x, self.state)  # <- metadata-address-changed
        return self.head(self.state[0])


torch.manual_seed(0)
policy = Policy().cuda().requires_grad_(False)
x = torch.randn(3, 4, device="cuda")


def step():
    return policy(x)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
episode = [policy.state]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    actions = step()
for _ in range(4):
    x.normal_()
    graph.replay()
    print(actions.sum().item())
print(len(episode), episode[0][0].sum().item())
