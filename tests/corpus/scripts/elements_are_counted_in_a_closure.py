"""A captured closure counts elements; another closure returns the count after the replays."""

import torch


def make():
    n = 0

    def step(x):
        nonlocal n
        n += x.numel()  # guilty: no replay counts
        return x * 2

    def seen():
        return n  # guilty: the count of the captures

    return step, seen


step, seen = make()
x = torch.ones(8, device="cuda")
step(x)
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    y = step(x)
for _ in range(3):
    g.replay()
print("elements seen:", seen(), y.sum().item())
