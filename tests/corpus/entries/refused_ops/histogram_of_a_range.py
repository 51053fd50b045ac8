import torch


def histogram_of_a_range(device):
    def forward(x):
        return torch.histc(x, 4, -1, 1)

    return forward, (torch.randn(4, 6, device=device),)
