"""Adams-Bashforth: a deque keeps the last derivatives, and the captured step appends to it."""

from collections import deque

import torch

state = torch.tensor([1.0, 0.0], device="cuda")
matrix = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], device="cuda")
history = deque(maxlen=2)


def step(dt=0.1):
    derivative = matrix @ state
    history.append(derivative)  # <- python-side-effects-skipped
    newest, older = history[-1], history[0]
    state.add_(newest, alpha=1.5 * dt).sub_(older, alpha=0.5 * dt)  # <- python-side-effects-skipped


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(8):
    graph.replay()
print([round(value, 3) for value in state.tolist()])
