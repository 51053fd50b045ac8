"""Two texts of a pair go through one tower, which is graphed."""

import torch
from torch import nn
from torch.nn import functional


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x):
        return functional.normalize(self.layers(x), dim=-1)


def pairs(count):
    for _ in range(count):
        anchor = torch.randn(8, 12, device="cuda")
        yield anchor, anchor + 0.1 * torch.randn(8, 12, device="cuda")


tower = Tower(12).cuda()
optimizer = torch.optim.AdamW(tower.parameters(), lr=1e-3)
tower = torch.cuda.make_graphed_callables(tower, (torch.randn(8, 12, device="cuda"),))
for query, document in pairs(5):
    optimizer.zero_grad()
    left = tower(query)  # <- graphed-callable-called-twice
    right = tower(document)  # <- graphed-callable-called-twice
    scores = left @ right.t() / 0.07
    loss = functional.cross_entropy(scores, torch.arange(8, device="cuda"))
    loss.backward()
    optimizer.step()
    print(loss.item())
