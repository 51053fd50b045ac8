import torch
from torch import nn


def orthogonal_momentum(device):
    # Muon keeps its momentum on the device and checks nothing.
    net = nn.Linear(8, 4, bias=False, device=device)
    optimizer = torch.optim.Muon(net.parameters(), lr=0.02)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.randn(6, 8, device=device),)
