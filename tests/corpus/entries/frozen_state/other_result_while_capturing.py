import torch
from torch import nn


def other_result_while_capturing(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        if torch.cuda.is_current_stream_capturing():  # <- code-branches-on-capturing
            return y  # <- code-branches-on-capturing
        return y.relu()  # <- code-branches-on-capturing

    return forward, (torch.randn(8, 16, device=device),)
