"""Functions that a block calls read what it assigns, and assign what it reads."""

import os
import signal

import torch

ended = []
signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))


def capture_in_a_function():
    x, hidden, scaled = torch.zeros(8, device="cuda"), None, None

    def scale():
        nonlocal scaled
        scaled = hidden * 2

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        hidden = x + 1
        scale()
        y = scaled + 1
    return graph, x, y


def scale():
    global scaled
    scaled = hidden * 2


x = hidden = scaled = torch.zeros(8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x.add_(1)
    hidden = x + 1
    scale()
    y = scaled + 1
inner, inner_x, inner_y = capture_in_a_function()
try:
    os.wait()
except ChildProcessError:
    pass
else:
    raise SystemExit("a child that is not the script's")
for _ in range(3):
    graph.replay()
    inner.replay()
    print(y.sum().item(), inner_y.sum().item(), inner_x.sum().item())
assert not ended
