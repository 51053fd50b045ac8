from __future__ import annotations

import torch


def rows(device, *shape, grad=False):
    return torch.randn(*(shape or (4, 8)), device=device, requires_grad=grad)


def record_stream_of_what_lives_on(device):
    side = torch.cuda.Stream()

    def run(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.square()
        torch.cuda.current_stream().wait_stream(side)
        y.record_stream(torch.cuda.current_stream())
        return y.sum(0) * 2

    return run, (rows(device),)
