import torch


def fills_all_with_the_maximum(device):
    def forward(x):
        return x.clone().fill_(x.max())

    return forward, (torch.randn(4, 6, device=device),)
