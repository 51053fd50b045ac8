"""Two branches on two streams, forked from and joined to the capturing stream.

    cgtool capture samples/two_streams.py:build
    cgtool dump two_streams-build.cgt --svg -o two_streams.svg

Look at: the fork and the join in the picture, and the stream of every node.
"""

import torch
from torch import nn


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
        self.right = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
        self.side = torch.cuda.Stream()

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            right = self.right(x)
        left = self.left(x)
        main.wait_stream(self.side)
        return left + right


def build(device: str):
    torch.manual_seed(0)
    return TwoBranches().to(device), (torch.randn(64, 256, device=device),)
