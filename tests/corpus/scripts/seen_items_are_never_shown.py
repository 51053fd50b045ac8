"""Recommendations: items that a user has seen are left out by a mask that grows in place."""

import torch
from torch import nn

users, items, width = 4, 24, 8
item_vectors = nn.Embedding(items, width).cuda().requires_grad_(False)
tower = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, width)).cuda()
tower.requires_grad_(False)
features = torch.randn(users, 6, device="cuda")
seen = torch.zeros(users, items, dtype=torch.bool, device="cuda")
boost = torch.zeros(items, device="cuda")


def recommend(k=5):
    scores = tower(features) @ item_vectors.weight.t() + boost
    scores[seen] = float("-inf")
    values, indices = scores.topk(k)
    seen.scatter_(1, indices, True)
    return values, indices


recommend()
seen.zero_()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    values, indices = recommend()

shown = [set() for _ in range(users)]
for page in range(3):
    boost.normal_(std=0.1)
    graph.replay()
    for user, row in zip(shown, indices.tolist(), strict=True):
        assert not user & set(row)
        user.update(row)
    print(page, values.mean().item())
