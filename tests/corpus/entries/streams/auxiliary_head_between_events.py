import torch
from torch import nn


def auxiliary_head_between_events(device):
    body, head = nn.Linear(6, 4).to(device), nn.Linear(6, 4).to(device)
    side, start, end = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()

    @torch.no_grad()
    def f(x):
        start.record()
        side.wait_event(start)
        with torch.cuda.stream(side):
            extra = head(x)
            end.record()
        main = body(x)
        end.wait()
        return main + extra

    return f, (torch.randn(8, 6, device=device),)
