import torch


def equal_of_two_shapes(device):
    def forward(x):
        return x * torch.equal(x, x[:2])

    return forward, (torch.randn(4, 6, device=device),)
