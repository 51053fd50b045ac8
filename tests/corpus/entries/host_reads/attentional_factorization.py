import torch
from torch import nn


class FactorizationMachine(nn.Module):
    """Pairwise products of field embeddings, as in AFM."""

    def __init__(self, sizes, width=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.attention = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 1))
        self.out = nn.Linear(width, 1)

    def forward(self, fields):
        rows = torch.stack([t(fields[:, i]) for i, t in enumerate(self.tables)], 1)
        pairs = torch.combinations(
            torch.arange(rows.shape[1], device=rows.device)
        )  # <- sync-dynamic-shape-op
        products = rows[:, pairs[:, 0]] * rows[:, pairs[:, 1]]
        weights = self.attention(products).softmax(1)
        return self.out((weights * products).sum(1)).squeeze(-1)


def attentional_factorization(device):
    torch.manual_seed(0)
    fields = torch.randint(10, (16, 5), device=device)
    return FactorizationMachine([10] * 5).to(device), (fields,)
