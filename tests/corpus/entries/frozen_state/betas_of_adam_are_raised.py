import torch
from torch import nn


def betas_of_adam_are_raised(device):
    net = nn.Linear(4, 1, device=device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, betas=(0.5, 0.9), capturable=True)

    def step(x):
        for group in optimizer.param_groups:
            first, second = group["betas"]
            group["betas"] = (1 - (1 - first) * 0.7, second)  # <- cpu-state-step-counter
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()  # <- cpu-state-step-counter
        return loss.detach()

    return step, (torch.randn(8, 4, device=device),)
