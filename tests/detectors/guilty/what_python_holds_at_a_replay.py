"""What captured code reads of Python is another at a replay, in ways that no name shows."""

import collections
import contextvars
import functools
import heapq

import torch


def graphed(function, x):
    function(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)
    return graph, y


def of_context(x):
    return x * strength.get()  # <- python-scalar-frozen


def of_defaults(x, factors=(1.0, 2.0)):
    return x * factors[0]  # <- python-scalar-frozen


def of_the_first(x):
    return x * gains[0]  # <- metadata-address-changed


def of_the_smallest(x):
    return x * heapq.nsmallest(1, waiting)[0][1]  # <- python-scalar-frozen


def of_the_last(x):
    return layers[-1](x)  # <- metadata-address-changed


@functools.singledispatch
def of_a_kind(_kind, x):
    return x * 2


def of_a_name(x):
    return getattr(x, modes[-1])()  # <- control-flow-frozen


class Plugin:
    factor = 1.0


class Louder(Plugin):
    factor = 2.0


def of_plugins(x):
    for plugin in Plugin.__subclasses__():  # <- control-flow-frozen
        x = x * plugin.factor
    return x


strength = contextvars.ContextVar("strength", default=1.0)
gains = collections.deque(torch.full((8,), float(i), device="cuda") for i in range(3))
waiting = [(0.0, 1.0)]
layers = [torch.nn.Linear(8, 8).cuda(), torch.nn.Linear(8, 8).cuda()]
kind = Plugin()
modes = ["sum"]

x = torch.ones(8, device="cuda")
graphs = [
    graphed(of_context, x),
    graphed(of_defaults, x),
    graphed(of_the_first, x),
    graphed(of_the_smallest, x),
    graphed(of_the_last, x),
    graphed(lambda x: of_a_kind(kind, x), x),
    graphed(of_a_name, x),
    graphed(of_plugins, x),
]
for step in range(3):
    x.fill_(float(step))
    for graph, _ in graphs:
        graph.replay()
    torch.cuda.synchronize()
    print([y.sum().item() for _, y in graphs])
    if step == 0:
        strength.set(3.0)
        of_defaults.__defaults__ = ((4.0, 2.0),)
        gains.rotate(1)
        heapq.heappush(waiting, (-1.0, 5.0))
        layers.append(torch.nn.Linear(8, 8).cuda())
        of_a_kind.register(Plugin, lambda _kind, x: x * 3)  # <- python-scalar-frozen
        modes.append("mean")
        added = type("Quieter", (Plugin,), {"factor": 0.5})
