import torch
from torch import nn


def observer_of_quantization(device):
    observer = torch.ao.quantization.MinMaxObserver().to(device)
    layer = nn.Linear(8, 8, device=device)

    @torch.no_grad()
    def calibrate(x):
        observer(x)
        return layer(x)

    return calibrate, (torch.randn(4, 8, device=device),)
