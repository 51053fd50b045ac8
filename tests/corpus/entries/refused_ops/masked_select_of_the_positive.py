import torch


def masked_select_of_the_positive(device):
    def forward(x):
        return x.masked_select(x > 0)  # <- sync-dynamic-shape-op

    return forward, (torch.randn(4, 6, device=device),)
