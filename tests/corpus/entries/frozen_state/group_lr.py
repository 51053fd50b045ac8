import torch
from torch import nn


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# hand-written warm-up of param_groups
def group_lr(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(8, 16, device=device)
    it = 0

    def step():
        nonlocal it
        it += 1  # <- cpu-state-step-counter
        for g in opt.param_groups:
            g["lr"] = 0.1 * min(1.0, it / 50)  # <- cpu-state-step-counter
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()  # <- cpu-state-step-counter
        return loss

    return step
