import torch


def search_in_sorted_numbers(device):
    def forward(x):
        return torch.searchsorted(x.sort().values, x)

    return forward, (torch.randn(4, 6, device=device),)
