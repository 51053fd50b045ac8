import torch
from torch import nn


def gradient_hooks(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x):
            hidden = self.body(x).relu()
            if hidden.requires_grad:
                hidden.register_hook(lambda g: g * 0.1)
            return self.head(hidden)

    return Net().to(device), (torch.randn(4, 16, device=device),)
