import torch


def distinct_values(device):
    def forward(x):
        return torch.unique(x)  # <- sync-dynamic-shape-op

    return forward, (torch.randint(5, (9,), device=device),)
