"""A regression test: each answer of the graph is compared with a copy of the model on the host."""

import copy

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, tokens=6, size=16):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.tokens = nn.Sequential(nn.Linear(tokens, 12), nn.GELU(), nn.Linear(12, tokens))
        self.channels = nn.Sequential(nn.Linear(size, 32), nn.GELU(), nn.Linear(32, size))

    def forward(self, x):
        x = x + self.tokens(self.norm(x).mT).mT
        return x + self.channels(self.norm(x))


def compare(graph, inputs, outputs, reference, cases):
    worst = 0.0
    for case in cases:
        inputs.copy_(case)
        graph.replay()
        expected = reference(case)
        torch.testing.assert_close(outputs.cpu(), expected, rtol=1e-3, atol=1e-4)
        worst = max(worst, (outputs.cpu() - expected).abs().max().item())
    return worst


torch.manual_seed(14)
model = nn.Sequential(Mixer(), Mixer()).eval().requires_grad_(False)
reference = copy.deepcopy(model)
model.cuda()
inputs = torch.zeros(2, 6, 16, device="cuda")
for _ in range(2):
    model(inputs)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    outputs = model(inputs)
print(compare(graph, inputs, outputs, reference, torch.randn(4, 2, 6, 16)) < 1e-3)
