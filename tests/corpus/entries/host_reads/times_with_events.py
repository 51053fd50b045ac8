import torch
from torch import nn


def times_with_events(device):
    model = nn.Linear(16, 16, device=device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []

    def forward(x):
        start.record()
        y = model(x)
        end.record()
        end.synchronize()  # <- explicit-synchronize
        times.append(start.elapsed_time(end))  # <- event-or-stream-query
        return y

    return forward, (torch.randn(8, 16, device=device),)
