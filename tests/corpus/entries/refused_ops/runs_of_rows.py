import torch


def runs_of_rows(device):
    def forward(x):
        return torch.unique_consecutive(x, dim=0)  # <- sync-dynamic-shape-op

    return forward, (torch.randn(4, 6, device=device),)
