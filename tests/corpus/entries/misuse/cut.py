import torch
from torch import nn


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# split backward at a cut
def cut(device):
    a, b = mlp(device), mlp(device)
    x = torch.randn(8, 16, device=device)

    def step():
        a.zero_grad()
        b.zero_grad()
        h = a(x)
        z = h.detach().requires_grad_()
        loss = b(z).square().mean()
        loss.backward()
        h.backward(z.grad)
        return loss

    return step
