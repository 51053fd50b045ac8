"""Captured code fills lists that the script reads and empties after each step; no replay does."""

import torch
from torch import nn

x = torch.ones(4, device="cuda")
sizes = []


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.reports = []

    def forward(self, x):
        self.reports.append(x.square().mean())  # <- python-side-effects-skipped
        return x.softmax(0)


def collect():
    return sum(gate.reports for gate in gates)


def step():
    y = x
    for gate in gates:
        y = gate(y)
    sizes.append(y.numel())  # <- python-side-effects-skipped
    total = y.sum()
    for report in (each for gate in gates for each in gate.reports):
        total = total + 0.1 * report.detach()
    return total


def forget():
    for gate in gates:
        gate.reports.clear()
    sizes.clear()


gates = [Gate(), Gate()]
step()
forget()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = step()
for value in range(3):
    x.fill_(value)
    graph.replay()
    reports = [each.item() for gate in gates for each in gate.reports]
    print(y.item(), sum(reports), sum(sizes))
    forget()
