import torch
from torch import nn
from torch.nn import functional


def muon_for_the_matrices(device):
    model = nn.Sequential(nn.Linear(6, 12, bias=False), nn.Tanh(), nn.Linear(12, 4, bias=False))
    model.to(device)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.02, momentum=0.95, weight_decay=0.1)
    x, y = torch.randn(16, 6, device=device), torch.randn(16, 4, device=device)

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step
