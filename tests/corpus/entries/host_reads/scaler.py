import torch
from torch import nn


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# GradScaler.step reads found_inf with .item().
def scaler(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gs = torch.amp.GradScaler("cuda")
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        gs.scale(loss).backward()
        gs.step(opt)  # <- nan-guard-sync
        gs.update()
        return loss

    return step
