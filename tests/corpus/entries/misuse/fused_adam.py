import torch
from torch import nn


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# fused Adam without capturable
def fused_adam(device):
    net = mlp(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)  # <- optimizer-not-capturable
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()  # <- optimizer-not-capturable
        return loss

    return step
