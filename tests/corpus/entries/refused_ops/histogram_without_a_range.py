import torch


def histogram_without_a_range(device):
    def forward(x):
        return torch.histc(x, 4)  # <- sync-d2h-copy

    return forward, (torch.randn(4, 6, device=device),)
