import torch


def compares_with_equal(device):
    def forward(x):
        return x * torch.equal(x, x + 0)  # <- sync-truth-value

    return forward, (torch.randn(4, 6, device=device),)
