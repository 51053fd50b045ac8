import torch
from torch import nn


# Lazy modules initialised before
def lazy_linear(device):
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2)).to(device)
    x = torch.randn(4, 6, device=device)
    model(x)
    return model, (x,)
