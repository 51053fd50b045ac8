"""The cost of watching an op, by recorder: `python benchmarks/recorder.py [NAME ...]`.

Each row is a program on the CPU, in microseconds an op: plain, and how much more each way of
watching takes. The ways take turns, and the fastest tenth of their rounds is compared, in CPU time,
so that other work on the machine counts little.

- ``kernel``: an observer that does nothing: the way of an op into Python and back.
- ``places``: an op recorder, as in a capture of ``cgtool run``: op, line, module, autograd node.
- ``native``: the same by the kernel in C++, where it is compiled (``cgtool doctor --build``). The
  stream's position is that of a function that does nothing.
- ``record``: an op recorder that also notes reads and writes, as in ``cgtool capture``.
- ``mode``: the same by a ``TorchDispatchMode``, where PyTorch has no key to watch. It sees more
  ops in training: ``detach``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles
from types import FrameType
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import Chains, Site
from cgtool.observe.ops import OpRecorder, RootedModuleStack
from cgtool.torch_compat import op_key, op_watch
from cgtool.torch_compat.private import CALL_MODULE_CODE

ROUNDS = 200
encoder = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, foreach=False)
batch = torch.randn(1, 4, 16)
layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(30)))
rows = torch.randn(4, 8)
small = torch.zeros(16)


def training() -> None:
    optimizer.zero_grad()
    encoder(batch).sum().backward()
    optimizer.step()


def evaluation() -> None:
    with torch.no_grad():
        encoder(batch)


def modules() -> None:
    layers(rows)


def tensors() -> None:
    for _ in range(100):
        small.add_(small)


def numbers() -> None:
    for _ in range(100):
        small.add_(1)


def views() -> None:
    for _ in range(100):
        rows.t()


PROGRAMS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (training, evaluation, modules, tensors, numbers, views)
}
Watching = contextlib.AbstractContextManager[OpRecorder | None]


def kernel() -> Watching:
    return op_key.watch(lambda _op, args, kwargs, run, _caller: run(*args, **kwargs))


class PlaceRecorder(OpRecorder):
    """A recorder like that of ``cgtool run``, which names modules from the outermost one that
    runs."""

    def __init__(self) -> None:
        super().__init__({}, Annotations())
        self.modules: RootedModuleStack = RootedModuleStack(Chains())

    def chain(self, caller: FrameType | None) -> tuple[Site, ...]:
        return self.modules.chain(caller)


@contextlib.contextmanager
def native(module: Any) -> Iterator[None]:
    """Watches ops with the recorder in C++; the calls are not read from its log."""
    nothing = ctypes.cast(ctypes.CDLL(None).getppid, ctypes.c_void_p).value
    settings = module.Settings(nothing, False, set(), int, int, CALL_MODULE_CODE, max)
    with op_key.watch_natively(module, module.Log(settings, 0, None)):
        yield


def record(by_mode: bool = False) -> Callable[[], Watching]:
    """A recorder for which every op has a launch."""
    accesses = AccessLog()

    @contextlib.contextmanager
    def entered() -> Iterator[OpRecorder]:
        recorder = OpRecorder({}, Annotations(), itertools.count().__next__, accesses)
        with mock.patch.object(op_key, "is_supported", lambda: not by_mode), recorder:
            yield recorder

    return entered


def measure(program: Callable[[], None]) -> str:
    ways: dict[str, Callable[[], Watching]] = {
        "plain": contextlib.nullcontext,
        "kernel": kernel,
        "places": PlaceRecorder,
        "record": record(),
        "mode": record(by_mode=True),
    }
    module = op_watch.load() if op_key.can_watch_natively() else None
    if module is not None:
        ways["native"] = functools.partial(native, module)
    times: dict[str, list[float]] = {name: [] for name in ways}
    ops: dict[str, int] = {}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            with way() as recorder:
                program()
                clock = time.thread_time()
                program()
                times[name].append(time.thread_time() - clock)
            if recorder is not None:
                ops[name] = len(recorder.record.calls) // 2
    us = {name: quantiles(values, n=10)[0] * 1e6 for name, values in times.items()}
    plain, count = us.pop("plain"), ops["places"]
    more = "".join(f"{(value - plain) / ops.get(name, count):8.2f}" for name, value in us.items())
    return f"{count:5} {plain / count:7.2f} {more}"


def main() -> None:
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}: us an op")
    print(f"{'':10} {'ops':>5} {'plain':>7}  +kernel +places +record   +mode +native")
    for name in sys.argv[1:] or PROGRAMS:
        print(f"{name:10} {measure(PROGRAMS[name])}", flush=True)


if __name__ == "__main__":
    main()
