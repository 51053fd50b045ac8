"""Lists that captured code fills: those that it empties itself, that only one call fills, or whose
items nothing reads."""

import torch
from torch import nn

layers = [nn.Linear(8, 8).cuda() for _ in range(2)]
kept, tables, seen, start = [], [], [], torch.zeros(())
x = torch.randn(4, 8, device="cuda")


def emptied_first(x):
    kept.clear()
    for layer in layers:
        x = layer(x)
        kept.append(x)
    return torch.stack(kept).sum(0)


def filled_once(x):
    while len(tables) < 2:
        tables.append(torch.full((8,), float(len(tables)), device="cuda"))
    return x * tables[1] + tables[0]


def noted(x):
    seen.append(tuple(x.shape))
    start.fill_(0.5)
    return x * start


for step in (emptied_first, filled_once, noted):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            step(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        out = step(x)
    for _ in range(3):
        x.mul_(0.9)
        graph.replay()
        print(out.sum().item())
