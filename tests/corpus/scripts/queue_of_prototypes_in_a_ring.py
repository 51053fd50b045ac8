"""Prototypes are a ring buffer on the device; the host keeps the labels in a deque beside it."""

# The ring is written in place at a device position, and `stack` is not called at a replay.

from collections import deque

import torch

ring = torch.zeros(3, 4, device="cuda")
slot = torch.zeros(1, dtype=torch.long, device="cuda")
new = torch.zeros(1, 4, device="cuda")
query = torch.zeros(2, 4, device="cuda")
labels = deque(maxlen=3)


def classify():
    ring.index_copy_(0, slot, new)
    slot.add_(1).remainder_(3)
    return torch.cdist(query, ring).argmin(-1)


classify()
ring.zero_(), slot.zero_()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    label = classify()

ring.zero_(), slot.zero_()
for episode in range(5):
    labels.append(f"class {episode}")
    new.fill_(float(episode))
    query.fill_(2.0)
    graph.replay()
    print(len(labels), label.tolist())
