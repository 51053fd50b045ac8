import torch
from torch import nn
from torch.nn import functional


def anomalies_detected_in_training(device):
    model = nn.Linear(6, 3).to(device)
    x, y = torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device)

    def step():
        model.zero_grad()
        with torch.autograd.detect_anomaly(check_nan=True):
            loss = functional.cross_entropy(model(x), y)
            loss.backward()  # <- nan-guard-sync
        return loss

    return step
