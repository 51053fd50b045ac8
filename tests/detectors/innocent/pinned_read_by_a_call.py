"""Arrays with the memory of pinned tensors are passed on, and read by calls after a wait."""

import collections
import contextlib
import functools
import io
import logging
import queue
import struct
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

x = torch.zeros(8, device="cuda")
pinned = torch.empty(8, pin_memory=True)
samples = pinned.numpy()
rows = torch.zeros(2, 8, pin_memory=True)
arrays = rows.numpy()
arrived = torch.cuda.Event()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    pinned.copy_(y, non_blocking=True)

outdata = np.zeros(8, np.float32)
static = torch.zeros(8, device="cuda")
recent = collections.deque(maxlen=2)
waiting, table, views = queue.Queue(), {}, [None, None]
sizes = struct.Struct("i")


@dataclass
class Item:
    view: np.ndarray
    done: torch.cuda.Event


class Holder:
    def __init__(self, view):
        self.view = view

    def swap(self, view):
        self.view, before = view, self.view
        return before

    def __setitem__(self, key, view):
        setattr(self, key, view)


def process(item):
    item.done.synchronize()
    return item.view.sum()


def write(file, view):
    arrived.synchronize()
    file.write(view)


def serve():
    while (item := waiting.get()) is not None:
        process(item)


thread = threading.Thread(target=serve)
thread.start()
holder, file = Holder(samples), io.BytesIO()
with ThreadPoolExecutor(1) as pool:
    for step in range(6):
        graph.replay()
        arrived.record()
        # None of these reads it.
        table["view"] = samples
        table.setdefault("first", samples[:4])
        views[0], views[1] = samples[:4], samples[4:]
        views[0:1] = [samples[:2]]
        holder["view"] = samples
        recent.append(samples[:step])
        row = np.asarray(samples[step : step + 1])
        row = memoryview(samples)
        row = cast(np.ndarray, samples[step:])
        row = samples.reshape(2, 4).T
        half = functools.partial(np.sum, samples[:4])
        before = holder.swap(samples[:step])
        tensor = torch.from_numpy(samples)
        static.copy_(torch.from_numpy(samples), non_blocking=True)
        static[:] = tensor
        graph.replay()
        arrived.record()
        print(len(samples), samples.shape, isinstance(samples, np.ndarray), samples.nbytes)
        print(np.shape(samples), np.may_share_memory(samples, outdata), sys.getsizeof(samples))
        logging.getLogger(__name__).debug("got %s", samples)
        alive = weakref.ref(samples)
        np.add(outdata, 1, out=outdata)
        with contextlib.nullcontext(samples) as same:
            pass
        waiting.put(Item(samples, arrived))
        written = pool.submit(write, file, samples)
        written.result()
        # The host has waited.
        arrived.synchronize()
        outdata[:] = samples
        file.write(samples)
        np.copyto(outdata, samples[:8])
        print(torch.tensor(samples).sum(), np.concatenate([samples, outdata]).sum())
        # Another row is under way.
        rows[step % 2].copy_(y, non_blocking=True)
        file.write(arrays[(step + 1) % 2])
        outdata[:] = arrays[(step + 1) % 2]
        torch.cuda.synchronize()
waiting.put(None)
thread.join()
