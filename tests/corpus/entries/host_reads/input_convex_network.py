import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm


class Positive(nn.Module):
    def forward(self, raw):
        return functional.softplus(raw)

    def right_inverse(self, value):
        return value.expm1().clamp_min(1e-6).log()


def input_convex_network(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1)).to(device)
    parametrize.register_parametrization(model[2], "weight", Positive())
    weight_norm(model[0])
    return model, (torch.randn(4, 8, device=device),)
