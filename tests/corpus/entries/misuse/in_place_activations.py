import torch
from torch import nn


def in_place_activations(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.SiLU(inplace=True), nn.Linear(8, 4)).to(device)
    return model, (torch.randn(4, 8, device=device),)
