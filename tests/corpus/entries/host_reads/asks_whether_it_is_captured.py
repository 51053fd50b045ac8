import torch
from torch import nn


def asks_whether_it_is_captured(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        if not torch.cuda.is_current_stream_capturing():
            assert torch.isfinite(y).all()
        return y

    return forward, (torch.randn(8, 16, device=device),)
