import torch
from torch import nn


# stream race: side result used before the join
def race(device):
    side = torch.cuda.Stream()
    a, b = nn.Linear(8, 8).to(device), nn.Linear(8, 8).to(device)

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            left = a(x)  # <- stream-race-in-capture
        y = left + b(x)  # <- stream-race-in-capture
        torch.cuda.current_stream().wait_stream(side)
        return y

    return torch.no_grad()(forward), (torch.randn(4, 8, device=device),)
