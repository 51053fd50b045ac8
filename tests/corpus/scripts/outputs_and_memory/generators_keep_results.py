"""Generators that take turns; each reads its result before the next replay, or a copy of it."""

import torch

x = torch.zeros(2, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


def stepped(value):
    for _ in range(3):
        x.fill_(value)
        graph.replay()
        mine = y.view(2)
        kept = mine.clone()
        yield mine[0].item()
        yield kept[0].item()


streams = [stepped(1.0), stepped(2.0)]
for _ in range(6):
    print([next(each) for each in streams])
