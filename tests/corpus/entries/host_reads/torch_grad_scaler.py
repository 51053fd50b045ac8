import torch
from torch import nn


def torch_grad_scaler(device):
    model = nn.Linear(8, 4, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # <- nan-guard-sync
        scaler.update()
        return loss

    return step
