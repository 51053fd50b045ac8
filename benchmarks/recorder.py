"""What recording costs, by the key and by a mode: `python benchmarks/recorder.py`.

Each row is a program on the CPU: plain, and with an op recorder that notes places, reads and
writes. The ways take turns, and the fastest tenth of their rounds is compared, in CPU time, so that
other work on the machine does not count. A mode sees more ops in training: ``detach``.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import OpRecorder
from cgtool.torch_compat import op_key

ROUNDS = 200
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
batch = torch.randn(1, 4, 16)
small = torch.zeros(16)


def training() -> None:
    optimizer.zero_grad()
    layer(batch).sum().backward()
    optimizer.step()


def evaluation() -> None:
    with torch.no_grad():
        layer(batch)


def tensors() -> None:
    for _ in range(100):
        small.add_(small)


def numbers() -> None:
    for _ in range(100):
        small.add_(1)


@contextlib.contextmanager
def recorded(accesses: AccessLog, by_mode: bool) -> Iterator[OpRecorder]:
    """A recorder for which every op has a launch."""
    recorder = OpRecorder({}, Annotations(), itertools.count().__next__, accesses)
    with mock.patch.object(op_key, "is_supported", lambda: not by_mode), recorder:
        yield recorder


def measure(program: Callable[[], None]) -> str:
    logs = AccessLog(), AccessLog()
    times: dict[str, list[float]] = {"plain": [], "key": [], "mode": []}
    ops: dict[str, int] = {}
    for _ in range(ROUNDS):
        for way, way_times in times.items():
            context: contextlib.AbstractContextManager[OpRecorder | None] = (
                contextlib.nullcontext()
                if way == "plain"
                else recorded(logs[way == "mode"], way == "mode")
            )
            with context as recorder:
                program()
                clock = time.thread_time()
                program()
                way_times.append(time.thread_time() - clock)
            if recorder is not None:
                ops[way] = len(recorder.record.calls) // 2
    us = {way: quantiles(way_times, n=10)[0] * 1e6 for way, way_times in times.items()}
    each = "  ".join(f"{way} {us[way]:7.0f} us for {count} ops" for way, count in ops.items())
    return f"plain {us['plain']:5.0f} us  {each}  key/mode {us['key'] / us['mode']:.2f}"


def main() -> None:
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}")
    for program in (training, evaluation, tensors, numbers):
        print(f"{program.__name__:10}  {measure(program)}")


if __name__ == "__main__":
    main()
