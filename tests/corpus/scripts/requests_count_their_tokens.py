"""The captured step counts the tokens of each request; replays later, some should be done."""

import torch
from torch import nn


class Request:
    def __init__(self, rid):
        self.rid, self.generated = rid, 0


class Batch:
    def __init__(self, n):
        self.requests = [Request(i) for i in range(n)]
        self.x = torch.zeros(n, 8, device="cuda")


model = nn.Linear(8, 8).cuda().eval()
batch = Batch(3)


@torch.no_grad()
def decode_step():
    y = model(batch.x)
    batch.x.copy_(y)
    for r in batch.requests:
        r.generated += 1  # guilty: no replay counts
    return y


decode_step()
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    y = decode_step()
for r in batch.requests:
    r.generated = 0
for _ in range(5):
    g.replay()
done = [r.rid for r in batch.requests if r.generated >= 5]  # guilty: none is done
print(done, y.sum().item())
