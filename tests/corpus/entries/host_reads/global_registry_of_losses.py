import torch
from torch import nn
from torch.nn import functional


def global_registry_of_losses(device):
    model = nn.Linear(8, 1, device=device)

    def loss(x):
        y = model(x)
        return sum(function(y) for function in LOSSES)

    return loss, (torch.randn(4, 8, device=device),)


LOSSES = [lambda y: y.square().mean(), lambda y: functional.softplus(y).mean()]
