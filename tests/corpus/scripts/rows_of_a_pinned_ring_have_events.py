"""Results are copied to a ring of pinned rows, and logged when the event of the row is done."""

from collections import deque

import torch

torch.manual_seed(0)
grid = torch.rand(64, 64, device="cuda")
rows = torch.zeros(3, 2).pin_memory()


def diffuse():
    lap = sum(torch.roll(grid, s, d) for s in (1, -1) for d in (0, 1)) - 4 * grid
    grid.add_(0.1 * lap)
    return torch.stack((grid.mean(), grid.std()))


diffuse()
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    stats = diffuse()

pending, log = deque(), []


def drain(keep):
    while len(pending) > keep:
        row, event = pending.popleft()
        event.synchronize()
        log.append(row.tolist())


for step in range(8):
    drain(keep=2)
    g.replay()
    row = rows[step % 3]
    row.copy_(stats, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    pending.append((row, event))
drain(keep=0)
print(log)
