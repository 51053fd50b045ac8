import torch
from torch import nn


class AdapterPerToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.down = nn.Parameter(torch.randn(4, 8, 2))
        self.up = nn.Parameter(torch.randn(4, 2, 8))

    @torch.no_grad()
    def forward(self, x, slot):
        used = slot >= 0
        rows = slot.clamp(min=0)
        low = torch.bmm(x.unsqueeze(1), self.down[rows])
        extra = torch.bmm(low, self.up.index_select(0, rows)).squeeze(1)
        return self.base(x) + extra.masked_fill(~used.unsqueeze(1), 0.0)


def adapter_chosen_by_each_token(device):
    slots = torch.tensor([0, -1, 3, 2, -1], device=device)
    return AdapterPerToken().to(device), (torch.randn(5, 8, device=device), slots)
