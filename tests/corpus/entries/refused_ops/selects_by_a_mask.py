import torch


def selects_by_a_mask(device):
    def forward(x):
        return x[x > 0].sum()  # <- sync-dynamic-shape-op

    return forward, (torch.randn(4, 6, device=device),)
