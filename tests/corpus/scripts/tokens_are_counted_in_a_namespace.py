"""The captured decode step adds to a count of tokens, from which the rate is printed."""

from types import SimpleNamespace

import torch
from torch import nn

stats = SimpleNamespace(tokens=0, steps=0)
head = nn.Linear(16, 16).cuda().eval()
hidden = torch.randn(4, 16, device="cuda")


@torch.no_grad()
def decode():
    stats.tokens += hidden.shape[0]  # guilty: no replay adds to it
    return head(hidden).argmax(-1)


decode()
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    out = decode()
for _ in range(6):
    hidden.normal_()
    g.replay()
    stats.steps += 1
torch.cuda.synchronize()
print("tokens per step", stats.tokens / stats.steps)  # guilty: the tokens of the captures
