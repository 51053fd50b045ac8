import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, MinMaxObserver


class QuantizedLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.quantize = FakeQuantize(MinMaxObserver, quant_min=0, quant_max=255)

    def forward(self, x):
        return self.quantize(self.linear(x))  # <- hidden-sync-in-stock-module


def linear_with_fake_quantize(device):
    return QuantizedLinear().to(device), (torch.randn(4, 8, device=device),)
