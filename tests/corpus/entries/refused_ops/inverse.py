import torch


def inverse(device):
    def forward(x):
        return torch.linalg.inv(x)  # <- linalg-error-check

    return forward, (torch.randn(4, 4, device=device),)
