import torch
from torch import nn


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# AveragedModel with EMA: its count is copied from the CPU: guilty
def averaged_ema(device):
    net = mlp(device)
    avg = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    x = torch.randn(8, 16, device=device)
    avg.update_parameters(net)

    def step():
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        avg.update_parameters(net)  # <- h2d-pageable-copy
        return loss

    return step
