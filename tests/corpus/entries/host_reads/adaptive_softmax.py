import torch
from torch import nn


# adaptive softmax selects by nonzero
def adaptive_softmax(device):
    head = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]).to(device)

    def loss(x, y):
        return head(x, y).loss  # <- sync-dynamic-shape-op

    return torch.no_grad()(loss), (
        torch.randn(6, 8, device=device),
        torch.randint(20, (6,), device=device),
    )
