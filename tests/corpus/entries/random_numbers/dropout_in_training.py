import torch
from torch import nn


def dropout_in_training(device):
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 4)).to(device)
    return model.train(), (torch.randn(4, 8, device=device, requires_grad=True),)
