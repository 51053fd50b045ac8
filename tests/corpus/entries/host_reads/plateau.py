import torch
from torch import nn


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# plateau scheduler reads the loss
def plateau(device):
    net = mlp(device)
    opt = torch.optim.AdamW(net.parameters(), lr=torch.tensor(1e-3, device=device), capturable=True)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        sched.step(loss)  # <- hidden-sync-in-stock-module
        return loss

    return step
