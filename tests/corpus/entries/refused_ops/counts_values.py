import torch


def counts_values(device):
    def forward(x):
        return torch.bincount(x)  # <- sync-dynamic-shape-op

    return forward, (torch.randint(5, (9,), device=device),)
