import torch
from torch import nn


def _net(device):
    return nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 2)).to(device)


def fused_scaler_step(device):
    net = _net(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True, capturable=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=16.0, growth_interval=3)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step
