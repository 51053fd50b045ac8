import torch
from torch import nn


def scripted_with_a_value_branch(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        if bool((y > 100).any()):  # <- sync-truth-value
            y = y.clamp(max=100)
        return y

    return forward, (torch.randn(4, 16, device=device),)
