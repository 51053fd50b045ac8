"""Hooks that change what a layer gets or returns are removed, and the graph goes on with them."""

import functools

import torch
from torch import nn


def captured(model, x):
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
    print(y.sum().item())
    return graph, y


@torch.no_grad()
def louder(_module, _args, output, by=2.0):
    return output * by


class Patch:
    """It runs no op."""

    def __init__(self):
        self.value = torch.ones(2, 4, device="cuda")

    def __call__(self, _module, _args, _output):
        return self.value


def clamp(_module, _args, output):
    output[:, 0].clamp_(min=0)


torch.set_grad_enabled(False)
x = torch.randn(2, 4, device="cuda")

layer = nn.Linear(4, 4).cuda()
handle = layer.register_forward_hook(functools.partial(louder, by=3.0))
graph, y = captured(layer, x)
handle.remove()  # <- child-module-hooks-captured
graph.replay()

patched = nn.Linear(4, 4).cuda()
patch = Patch()
patching = patched.register_forward_hook(patch)
graph, y = captured(nn.Sequential(patched, nn.ReLU()), x)
patching.remove()  # <- child-module-hooks-captured
graph.replay()

shifted = nn.Linear(4, 4).cuda()
shift = shifted.register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
graph, y = captured(shifted, x)
shift.remove()  # <- child-module-hooks-captured
graph.replay()

clamped = nn.Linear(4, 4).cuda()
clamping = clamped.register_forward_hook(clamp)
graph, y = captured(clamped, x)
clamping.remove()  # <- child-module-hooks-captured
graph.replay()
