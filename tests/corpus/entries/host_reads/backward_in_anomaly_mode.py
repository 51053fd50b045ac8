import torch
from torch import nn


def backward_in_anomaly_mode(device):
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)).to(device)

    def f(x):
        net.zero_grad()
        # The engine asks each gradient isnan().any().item().
        with torch.autograd.detect_anomaly():  # <- nan-guard-sync
            loss = net(x).square().mean()  # <- nan-guard-sync
            loss.backward()  # <- nan-guard-sync
        return loss.detach()

    return f, (torch.randn(6, 4, device=device),)
