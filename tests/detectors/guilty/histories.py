"""Multistep methods that keep their last values in lists, which the captured step moves on."""

from collections import deque

import torch

state = torch.ones(4, device="cuda")
last, ring = [], deque(torch.full((4,), float(n), device="cuda") for n in range(4))
newest_first = deque([state.clone(), state.clone()], maxlen=2)


def step():
    value = -state
    last.append(value)  # <- python-side-effects-skipped
    if len(last) > 2:
        last.pop(0)  # <- python-side-effects-skipped
    newest_first.appendleft(value)  # <- python-side-effects-skipped
    state.add_(last[0]).add_(ring[0])
    state.add_(sum(weight * each for weight, each in zip((0.2, -0.1), newest_first, strict=True)))
    ring.rotate(1)  # <- python-side-effects-skipped


for _ in range(3):
    step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(3):
    graph.replay()
print(state.tolist())
