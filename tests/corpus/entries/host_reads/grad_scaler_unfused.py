import torch
from torch import nn
from torch.nn import functional


def grad_scaler_unfused(device):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    x = torch.randn(8, 16, device=device)
    y = torch.randint(4, (8,), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # <- nan-guard-sync
        scaler.update()
        return loss

    return step
