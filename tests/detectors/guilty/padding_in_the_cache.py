"""A serving loop whose padding writes the last batch's slots of the cache once more."""

import torch
from torch import nn

SIZE, CACHE = 4, 16
embed, proj = nn.Embedding(100, 8).cuda(), nn.Linear(8, 8).cuda()
tokens = torch.zeros(SIZE, dtype=torch.int64, device="cuda")
slots = torch.zeros(SIZE, dtype=torch.int64, device="cuda")
cache = torch.zeros(CACHE, 8, device="cuda")


def step():
    hidden = proj(embed(tokens))
    cache.index_copy_(0, slots, hidden)
    return hidden.relu()


with torch.inference_mode():
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    free = iter(range(CACHE))
    for count in (4, 3, 2, 3):
        tokens[:count].copy_(torch.randint(100, (count,)))  # <- bucket-padding-garbage
        taken = torch.tensor([next(free) for _ in range(count)])
        slots[:count].copy_(taken)  # <- bucket-padding-garbage
        graph.replay()
        print(out[:count].sum().item())
    print(cache.sum().item())
