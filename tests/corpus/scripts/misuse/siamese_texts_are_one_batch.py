"""Two texts of a pair go through one tower, which is graphed for both as one batch."""

import torch
from torch import nn
from torch.nn import functional


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x):
        return functional.normalize(self.layers(x), dim=-1)


class Recommender(nn.Module):
    """Sparse embeddings run eagerly; the dense tower is a graph."""

    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(100, 12, mode="mean", sparse=True)
        self.tower = Tower(12)

    def forward(self, query, document):
        both = torch.cat((self.words(query), self.words(document)))
        return self.tower(both).chunk(2)


model = Recommender().cuda()
sparse = torch.optim.SparseAdam(model.words.parameters(), lr=1e-3)
dense = torch.optim.AdamW(model.tower.parameters(), lr=1e-3)
sample = torch.randn(16, 12, device="cuda", requires_grad=True)
model.tower = torch.cuda.make_graphed_callables(model.tower, (sample,))
for _ in range(5):
    query, document = torch.randint(0, 100, (2, 8, 5), device="cuda")
    left, right = model(query, document)
    loss = functional.cross_entropy(left @ right.t() / 0.07, torch.arange(8, device="cuda"))
    for optimizer in (sparse, dense):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (sparse, dense):
        optimizer.step()
    print(loss.item())
