"""What the device at hand reaches when nothing else runs: the roofs that nodes are held against.

Measured, not looked up: clocks, power limits and partitions make the figure of a data sheet another
device's (Williams, Waterman and Patterson, Roofline, CACM 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

import torch

from cgtool.devices.cuda.tracing import busy
from cgtool.model.profile import Peak

_COPY_BYTES = 1 << 30
_MATMUL = 8192
_ROUNDS = 7
_ELEMENT = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}
_ROOM = 4
"""Of the free memory, no more than one part in so many is taken."""


def once_ns(once: Callable[[], object]) -> float:
    """Device time of one call, between two events, launched while the device was busy."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    busy()
    start.record()
    once()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e6


def device_ns(once: Callable[[], object], rounds: int = _ROUNDS) -> list[float]:
    """Device time of single calls, after one that is not timed."""
    once()
    return [once_ns(once) for _ in range(rounds)]


def empty_ns(rounds: int = _ROUNDS) -> list[float]:
    """What two events take that nothing was launched between."""
    return device_ns(lambda: None, rounds)


def memory_roof() -> float | None:
    """Bytes a second that a copy inside the device's memory moves, read and written together."""
    free, _ = torch.cuda.mem_get_info()
    size = min(_COPY_BYTES, free // _ROOM // 2)
    if size < 1 << 26:
        return None
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / median(device_ns(lambda: target.copy_(source))) * 1e9


def compute_roofs(dtypes: Iterable[str]) -> tuple[Peak, ...]:
    """Floating-point operations a second of a large matmul, for each dtype that is known here.

    float32 stands for the arithmetic without tensor cores, ``tf32`` for the one with. Leaves the
    precision of float32 matmuls as it was set last.
    """
    wanted = [name for name in _ELEMENT if name in set(dtypes)]
    if "float32" in wanted and torch.cuda.get_device_capability() >= (8, 0):
        wanted.append("tf32")
    return tuple(
        Peak(name, flops) for name in wanted if (flops := _matmul(name, _ELEMENT[name])) is not None
    )


def _matmul(name: str, element: int) -> float | None:
    free, _ = torch.cuda.mem_get_info()
    size = _MATMUL
    while 3 * element * size * size > free // _ROOM:
        size //= 2
        if size < 1024:
            return None
    dtype: torch.dtype = getattr(torch, "float32" if name == "tf32" else name)
    # Not asked first what it was: that raises where the code under test has set fp32_precision. No
    # code of the user's runs behind this.
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    left = torch.randn(size, size, device="cuda").to(dtype)
    right, out = left.t().contiguous(), torch.empty_like(left)
    spent = median(device_ns(lambda: torch.mm(left, right, out=out)))
    return 2 * size**3 / spent * 1e9
