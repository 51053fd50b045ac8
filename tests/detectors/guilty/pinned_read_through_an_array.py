"""NumPy arrays with the memory of pinned tensors, read while the device may still copy there."""

import numpy as np
import torch

x = torch.zeros(8, device="cuda")
pinned = torch.empty(8, pin_memory=True)
view = pinned.numpy()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1


class Reader:
    def __init__(self):
        self.rows = torch.zeros(2, 8, pin_memory=True)
        self.array = self.rows.numpy()

    def read(self, row):
        return self.array[row].max()  # <- unsynchronized-io


def fetch():
    graph.replay()
    pinned.copy_(y, non_blocking=True)


def total(values):
    return values.sum()  # <- unsynchronized-io


for step in range(2):
    x.fill_(step)
    fetch()
    print(view.sum())  # <- unsynchronized-io
    first = float(view[0])  # <- unsynchronized-io
    kept = np.array(view)  # <- unsynchronized-io
    doubled = view * 2  # <- unsynchronized-io
    text = f"{view}"  # <- unsynchronized-io
    last = view[-1]  # <- unsynchronized-io
    for _value in view:  # <- unsynchronized-io
        pass
    total(view)
    torch.cuda.synchronize()

reader = Reader()
graph.replay()
reader.rows[1].copy_(y, non_blocking=True)
reader.read(1)
reader.read(0)

host = torch.empty(8, pin_memory=True)
seen = host.numpy()
second = torch.cuda.CUDAGraph()
with torch.cuda.graph(second):
    host.copy_(x * 2, non_blocking=True)
second.replay()
print(seen.mean())  # <- unsynchronized-io
