import torch


def truth_of_is_nonzero(device):
    def forward(x):
        return x * torch.is_nonzero(x.sum())  # <- sync-truth-value

    return forward, (torch.randn(4, 6, device=device),)
