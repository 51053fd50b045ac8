import torch
from torch import nn


def scheduler_fills_the_rate(device):
    model = nn.Linear(8, 4, device=device)
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()  # <- lr-frozen-despite-capturable
        return loss

    return step
