"""Tokens are counted inside the block that captures, and printed after the replays."""

import torch
from torch import nn


def main():
    model = nn.Linear(8, 8).cuda().eval()
    x = torch.randn(4, 8, device="cuda")
    tokens = 0
    with torch.no_grad():
        model(x)
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = model(x)
            tokens += x.shape[0]  # guilty: no replay counts
    for _ in range(9):
        x.normal_()
        g.replay()
    print("tokens:", tokens, y.sum().item())  # guilty: the tokens of one step


main()
