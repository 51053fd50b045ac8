import torch
from torch import nn


class AmaxLinear(nn.Module):
    """Delayed scaling: the scale comes from the largest value of the last calls."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.meta = {"amax": torch.ones(4)}

    def to_device(self, device):
        self.meta["amax"] = self.meta["amax"].to(device)
        return self.to(device)

    def quantized(self, x):
        scale = 448.0 / self.meta["amax"].amax()
        return (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) / scale


class RolledInPlace(AmaxLinear):
    def forward(self, x):
        y = self.linear(self.quantized(x))
        self.meta["amax"].copy_(self.meta["amax"].roll(-1))
        self.meta["amax"][-1].copy_(x.abs().amax())
        return y


def amax_history_is_copied(device):
    model = RolledInPlace().to_device(device).requires_grad_(False)
    return model, (torch.randn(4, 8, device=device),)
