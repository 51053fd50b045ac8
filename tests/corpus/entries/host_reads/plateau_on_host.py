import torch
from torch import nn


def plateau_on_host(device):
    model = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # <- hidden-sync-in-stock-module
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step(loss)  # <- hidden-sync-in-stock-module

    return step
