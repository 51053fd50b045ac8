import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", category=FutureWarning)


def normalised_weights(device):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)),
        nn.LeakyReLU(0.1),
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        nn.LeakyReLU(0.1),
        nn.utils.spectral_norm(nn.Linear(8, 8)),
        nn.LeakyReLU(0.1),
        nn.utils.weight_norm(nn.Linear(8, 1)),
    ).to(device)
    return net, (torch.randn(5, 6, device=device),)
