"""Where the time of a recorded capture goes: `python benchmarks/capture_stages.py` (needs a GPU).

Each row is a program that is captured. `plain` is its time in milliseconds; the other columns are
multiples of that, each with one thing more that `cgtool run` does in a capture:

- ``ops``: ops and frames are noted; a function of the C library is called in the driver's place.
- ``position``: the driver says where the stream is, before and after each op.
- ``modules``: module hooks, and the launches of Triton kernels.
- ``nodes``: the nodes and their parameters are read. They are joined with the ops afterwards.

They are measured for both ways to watch ops, in Python and in C++, which is compiled first. The
ways take turns, and each figure is the median of the ratios of the rounds. A time ends before
`capture_end`, which instantiates the graph.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cgtool.devices.cuda import driver, recording
from cgtool.observe.generated import GeneratedCode
from cgtool.observe.origins import OriginTable
from cgtool.torch_compat import op_key, op_watch
from cgtool.torch_compat.patches import Patches

ROUNDS = 9
Way = Callable[[], contextlib.AbstractContextManager[Callable[[], object]]]
"""Entered at the beginning of a capture; what it gives is called at its end."""


def programs() -> dict[str, Callable[[], object]]:
    small = torch.ones(8, device="cuda")
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda().half()
    batch = torch.zeros(8, 32, 512, device="cuda", dtype=torch.half)

    def small_ops() -> None:
        for _ in range(2000):
            small.add_(1)

    return {
        "small_ops": small_ops,
        "forward": lambda: model(batch),
        "training": lambda: model(batch).sum().backward(),
    }


@contextlib.contextmanager
def plain() -> Iterator[Callable[[], object]]:
    yield lambda: None


def ways(captures: recording.Captures, native: Any) -> dict[str, Way]:
    @contextlib.contextmanager
    def watched(new: Callable[[Any], Any], *, drives: bool) -> Iterator[Callable[[], object]]:
        nothing = ctypes.CDLL(None).getppid  # its result is an error
        info = driver.capture_info() if drives else (nothing, True)
        with mock.patch.object(driver, "capture_info", lambda: info):
            recorder = new(captures.chains)
            with recorder.watching():
                yield lambda: recorder

    @contextlib.contextmanager
    def whole(module: Any, *, reads: bool) -> Iterator[Callable[[], object]]:
        with (
            mock.patch.object(op_watch, "load", lambda: module),
            mock.patch.object(captures, "native", module),
        ):
            watch = captures.watch(OriginTable(), (), compiled=False)
            watch.begin(None)
        try:
            yield watch.read if reads else lambda: None
        finally:
            watch.stop()

    result: dict[str, Way] = {}
    for name, module in (("Python", None), ("C++", native)):
        if name == "C++" and native is None:
            continue
        new = functools.partial(recording._NativeRecorder, native=module) if module else None
        kind = new or recording._Recorder
        result |= {
            f"{name} ops": functools.partial(watched, kind, drives=False),
            f"{name} position": functools.partial(watched, kind, drives=True),
            f"{name} modules": functools.partial(whole, module, reads=False),
            f"{name} nodes": functools.partial(whole, module, reads=True),
        }
    return result


def capture_ns(program: Callable[[], object], way: Way) -> int:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        start = time.perf_counter_ns()
        graph.capture_begin()
        try:
            with way() as read:
                program()
                read()
            return time.perf_counter_ns() - start
        finally:
            graph.capture_end()


def main() -> None:
    """Measure, and print a table."""
    try:
        native = op_watch.load() or (op_watch.build(), op_watch.load())[1]
    except op_watch.BuildError as error:
        print(f"only in Python: {error}")
        native = None
    op_key.prepare(recording.LET_THROUGH)
    if not op_key.can_watch_natively():
        print("only in Python: this PyTorch has no unused dispatch key")
        native = None
    with Patches() as patches:
        captures = recording.Captures(GeneratedCode(patches), patches)
        measured = {"plain": plain, **ways(captures, native)}
        print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
        print(f"{'':10}{'plain ms':>10}" + "".join(f"{name:>17}" for name in [*measured][1:]))
        for name, program in programs().items():
            for _ in range(3):
                program()
            times: dict[str, list[int]] = {way: [] for way in measured}
            for turn in range(ROUNDS + 1):
                for way, enter in measured.items():
                    spent = capture_ns(program, enter)
                    if turn:  # the first prepares what all of them need
                        times[way].append(spent)
            base = times.pop("plain")
            ratios = (
                median(one / other for one, other in zip(values, base, strict=True))
                for values in times.values()
            )
            row = "".join(f"{ratio:>17.2f}" for ratio in ratios)
            print(f"{name:10}{median(base) / 1e6:>10.2f}{row}", flush=True)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs a GPU")
    main()
