import torch


def positions_that_are_not_zero(device):
    def forward(x):
        return (x > 0).nonzero()  # <- sync-dynamic-shape-op

    return forward, (torch.randn(4, 6, device=device),)
