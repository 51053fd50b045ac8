"""Hooks that only look at activations, that are back before the replay, whose graph is not replayed
again, that were meant for the capture alone, or that one of two graphs has."""

import contextlib

import torch
from torch import nn

torch.set_grad_enabled(False)
x = torch.randn(2, 4, device="cuda")
seen = {}


def captured(model):
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    return graph, y


@contextlib.contextmanager
def scaled(model, by):
    handle = model.register_forward_hook(lambda _module, _args, output: output * by)
    try:
        yield
    finally:
        handle.remove()


def keep(_module, _args, output):
    seen["output"] = output.detach().clone()


def keep_and_pass(_module, _args, output):
    seen["norm"] = output.norm()
    return output


# What they computed is refreshed by each replay.
looked_at = nn.Linear(4, 4).cuda()
handles = [looked_at.register_forward_hook(hook) for hook in (keep, keep_and_pass)]
handles.append(looked_at.register_forward_pre_hook(lambda _module, args: args))
graph, y = captured(looked_at)
graph.replay()
for handle in handles:
    handle.remove()
graph.replay()
print(seen)

# Back before the replay.
layer = nn.Linear(4, 4).cuda()
with scaled(layer, 2.0):
    graph, y = captured(layer)
    graph.replay()
layer(x)
with scaled(layer, 2.0):
    graph.replay()
print(y)

# Not replayed again.
del graph, y

# For the capture alone.
steered = nn.Linear(4, 4).cuda()
with scaled(steered, 4.0):
    graph, y = captured(steered)
for _ in range(3):
    graph.replay()
    print((y - 4 * steered(x)).abs().max().item())
handle = steered.register_forward_hook(lambda _module, _args, output: output * 2)
with handle:
    other, y = captured(steered)
other.replay()

# One graph with the hook, and one without.
with scaled(layer, 0.5):
    quiet, quiet_y = captured(layer)
with torch.no_grad():
    plain, plain_y = captured(layer)
quiet.replay()
plain.replay()
print(quiet_y, plain_y)
