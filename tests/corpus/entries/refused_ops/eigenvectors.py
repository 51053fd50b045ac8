import torch


def eigenvectors(device):
    def forward(x):
        return torch.linalg.eig(x)[1].abs()  # <- linalg-error-check

    return forward, (torch.randn(4, 4, device=device),)
