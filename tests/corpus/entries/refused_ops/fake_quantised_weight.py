import torch
from torch import nn


def fake_quantised_weight(device):
    weight = nn.Parameter(torch.randn(4, 4, device=device))
    zero = torch.zeros(1, dtype=torch.int32, device=device)

    def forward(x):
        scale = (weight.detach().abs().amax() / 127).reshape(1)
        return x @ torch.fake_quantize_per_tensor_affine(weight, scale, zero, -128, 127)

    return forward, (torch.randn(3, 4, device=device),)
