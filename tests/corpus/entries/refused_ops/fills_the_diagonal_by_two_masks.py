import torch


def fills_the_diagonal_by_two_masks(device):
    def forward(x):
        x, dead = x.clone(), x.diag() > 0
        x[dead, dead] = 1  # <- sync-dynamic-shape-op
        return x

    return forward, (torch.randn(5, 5, device=device),)
