import torch


def chooses_a_number(device):
    def forward(x):
        return torch.where(x > 0, x, 0.0)

    return forward, (torch.randn(4, 6, device=device),)
