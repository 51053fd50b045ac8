import torch
from torch import nn
from torch.nn import functional


class TernaryLinear(nn.Linear):
    def forward(self, x):
        scale = self.weight.abs().mean().clamp(min=1e-5)
        weight = (self.weight / scale).round().clamp(-1, 1) * scale
        peak = x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        quantized = (x * 127 / peak).round().clamp(-128, 127) * peak / 127
        return functional.linear(quantized, weight, self.bias)


def weights_of_three_values(device):
    torch.manual_seed(0)
    model = nn.Sequential(TernaryLinear(8, 16), nn.ReLU(), TernaryLinear(16, 4)).to(device)
    return torch.no_grad()(model), (torch.randn(2, 8, device=device),)
