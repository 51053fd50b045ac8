from collections import OrderedDict

import torch
from torch import nn


# LRU of masks by shape
class Masks(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.lru = OrderedDict()

    def mask(self, n, device):
        try:
            self.lru.move_to_end(n)
        except KeyError:
            self.lru[n] = torch.ones(n, n, device=device).tril()
            if len(self.lru) > 4:
                self.lru.popitem(last=False)
        return self.lru[n]

    def forward(self, x):
        y = self.mask(x.shape[0], x.device) @ self.lin(x)
        return self.mask(4, x.device) @ y[:4]


def masks(device):
    torch.manual_seed(0)
    return Masks().to(device), (torch.randn(6, 8, device=device),)
