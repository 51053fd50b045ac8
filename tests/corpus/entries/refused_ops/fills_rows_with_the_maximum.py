import torch


def fills_rows_with_the_maximum(device):
    rows = torch.tensor([0, 3], device=device)

    def forward(x):
        return x.index_fill(0, rows, x.max())  # <- hidden-sync-in-stock-module

    return forward, (torch.randn(4, 6, device=device),)
