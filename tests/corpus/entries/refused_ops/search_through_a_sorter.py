import torch


def search_through_a_sorter(device):
    def forward(x):
        order = x.argsort()
        return torch.searchsorted(x, x, sorter=order)  # <- sync-item

    return forward, (torch.randn(4, 6, device=device),)
