"""Recommendations: items that a user has seen get lower scores, each by its own penalty."""

import torch
from torch import nn

users, items, width = 4, 24, 8
item_vectors = nn.Embedding(items, width).cuda().requires_grad_(False)
tower = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, width)).cuda()
tower.requires_grad_(False)
features = torch.randn(users, 6, device="cuda")
seen = torch.zeros(users, items, dtype=torch.bool, device="cuda")
penalties = torch.rand(users, items, device="cuda")


def recommend(k=5):
    scores = tower(features) @ item_vectors.weight.t()
    scores[seen] = scores[seen] - penalties[seen]  # guilty: as many numbers as there are True
    return scores.topk(k)


recommend()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    ranked = recommend()

for _ in range(3):
    features.copy_(torch.randn(users, 6))
    graph.replay()
    seen.scatter_(1, ranked.indices, True)
    print(ranked.indices[0].tolist())
