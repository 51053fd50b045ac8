"""Each block computes something else when it runs again, because of what only Python knows."""

import configparser
import contextlib
import contextvars
import ctypes
import heapq
import io
import struct

import numpy as np
import torch

x = torch.ones(4, device="cuda")
log = io.StringIO()
settings = configparser.ConfigParser()
settings["run"] = {"calls": "0"}
record = bytearray(4)
costs = list(range(1, 50))
calls = np.zeros(1)
depth = contextvars.ContextVar("depth", default=0)
left = [3]


class Stop(Exception):
    pass


class Counting:
    def __init__(self):
        object.__setattr__(self, "values", {"rate": 0})

    def __getattr__(self, name):
        self.values[name] += 1  # <- python-side-effects-skipped
        return self.values[name]


class Buffers:
    front = torch.ones(4, device="cuda")
    back = torch.zeros(4, device="cuda")


class Doubling:
    def __init__(self):
        self.__calls = ctypes.c_int(0)

    def scaled(self, x):
        return x * self.__calls.value


class Counted(Doubling):
    def capture(self, graph):
        graph.capture_begin()
        text = str(settings.getint("run", "calls") + 1)
        settings.set("run", "calls", text)
        y = super().scaled(x) + settings.getint("run", "calls")  # <- python-scalar-frozen
        graph.capture_end()
        return y


counting = Counting()
graphs = [torch.cuda.CUDAGraph() for _ in range(8)]


@contextlib.contextmanager
def captured(graph):
    with torch.cuda.graph(graph):
        yield


def written(x):
    log.write("a")
    return x * len(log.getvalue())  # <- python-scalar-frozen


def packed(x):
    (number,) = struct.unpack_from("i", record)
    struct.pack_into("i", record, 0, number + 1)
    return x * (number + 1)  # <- python-scalar-frozen


def stopped(x):
    try:
        left[0] -= 1
        if left[0] == 1:  # <- control-flow-frozen
            raise Stop
        return x * 1  # <- python-scalar-frozen
    except Stop:
        return x * 2


def added(x):
    np.add(calls, 1, out=calls)
    return x * float(calls[0])  # <- python-scalar-frozen


def swapped(x):
    Buffers.back.copy_(Buffers.front * 2 + x)  # <- metadata-address-changed
    Buffers.front, Buffers.back = Buffers.back, Buffers.front


stopped(x)
with captured(graphs[0]):
    a = written(x)
with torch.cuda.graph(graphs[1]):
    b = packed(x)
with torch.cuda.graph(graphs[2]):
    c = stopped(x)
with torch.cuda.graph(graphs[3]):
    d = added(x)
with torch.no_grad(), torch.cuda.graph(graphs[4]), torch.autocast("cuda", enabled=False):
    swapped(x)
with torch.cuda.graph(graphs[5]):
    e = x * heapq.heappop(costs)  # <- python-scalar-frozen
with torch.cuda.graph(graphs[6]):
    f = x * counting.rate  # <- python-scalar-frozen
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    h = Counted().capture(graphs[7])
torch.cuda.synchronize()
for _ in range(3):
    for graph in graphs:
        graph.replay()
print(a, b, c, d, e, f, h, Buffers.front)
