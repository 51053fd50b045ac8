"""A retrieval model: both towers are graphed together, and called in that order; eager scores."""

import torch
from torch import nn


def tower(width):
    return nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 16)).cuda()


torch.manual_seed(0)
query_tower, item_tower = tower(32), tower(48)
queries, items = torch.randn(64, 32, device="cuda"), torch.randn(64, 48, device="cuda")
query_tower, item_tower = torch.cuda.make_graphed_callables(
    (query_tower, item_tower), ((queries,), (items,))
)
parameters = [*query_tower.parameters(), *item_tower.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05)
labels = torch.arange(64, device="cuda")
for _ in range(3):
    queries, items = torch.randn(64, 32, device="cuda"), torch.randn(64, 48, device="cuda")
    optimizer.zero_grad()
    found = query_tower(queries)
    scores = found @ item_tower(items).T
    loss = nn.functional.cross_entropy(scores, labels)
    loss.backward()
    optimizer.step()
print(loss.item())
