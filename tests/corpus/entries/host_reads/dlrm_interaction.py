import torch
from torch import nn


def dlrm_interaction(device):
    tables = nn.ModuleList(nn.EmbeddingBag(n, 8, mode="sum") for n in (50, 30, 20)).to(device)
    bottom, top = nn.Linear(4, 8).to(device), nn.Linear(8 + 6, 1).to(device)
    rows, cols = torch.tril_indices(4, 4, offset=-1, device=device)

    class Dlrm(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables, self.bottom, self.top = tables, bottom, top

        def forward(self, dense, sparse):
            d = self.bottom(dense).relu()
            features = [d] + [t(ids) for t, ids in zip(self.tables, sparse.unbind(0), strict=True)]
            stacked = torch.stack(features, 1)
            pairs = torch.bmm(stacked, stacked.mT)[:, rows, cols]
            return torch.sigmoid(self.top(torch.cat([d, pairs], 1)))

    return Dlrm(), (
        torch.randn(6, 4, device=device),
        torch.randint(20, (3, 6, 2), device=device),
    )
