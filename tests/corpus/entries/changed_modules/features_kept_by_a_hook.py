import torch
from torch import nn


def features_kept_by_a_hook(device):
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
    kept = torch.zeros(4, 8, device=device)

    def keep(_module, _inputs, output):
        kept.copy_(output.detach())

    net[1].register_forward_hook(keep)

    @torch.no_grad()
    def forward(x):
        return net(x) * kept.mean()

    return forward, (torch.randn(4, 8, device=device),)
