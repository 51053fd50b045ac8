import torch


def fills_a_mask_with_the_maximum(device):
    def forward(x):
        return x.masked_fill(x < 0, x.max())  # <- sync-item

    return forward, (torch.randn(4, 6, device=device),)
