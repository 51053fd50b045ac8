"""What was measured of a capture: ``cgtool bench`` and ``cgtool profile``.

Durations are nanoseconds of the device unless a name says otherwise. The time of each node is in
the node itself (``Node.start_ns``, ``Node.duration_ns``).
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

PHASES = ("forward", "backward", "both", "step")
"""In the order of tables. ``both`` is no graph: it is forward and backward timed in one."""


def whole(phases: Container[str]) -> str:
    """The phase that is the whole iteration, of the phases that were captured or timed: ``step``,
    ``both`` where there is a backward, else ``forward``."""
    if "step" in phases:
        return "step"
    return "both" if "both" in phases or "backward" in phases else "forward"


class Samples(msgspec.Struct, frozen=True, omit_defaults=True):
    """Raw timings of one thing, one number a round."""

    name: str
    """``eager``, ``replay``, or ``against``: replays of the entry that this one is held against."""
    phase: str
    """``forward``, ``backward``, ``both`` or ``step``."""
    device_ns: tuple[float, ...] = ()
    """Per round: mean device time of one iteration, between two CUDA events."""
    host_ns: tuple[float, ...] = ()
    """Per round: mean host time to enqueue one iteration."""
    iterations: int = 1
    """Iterations inside each pair of events."""
    pairs: int = 1
    """Pairs of events in a round."""
    run: int = 0
    """Which worker process measured it, from 0: what is laid out in memory anew differs from
    process to process."""
    behind: str | None = None
    """The phase that ran, untimed, right before each iteration: ``forward`` for a backward."""
    captures: int = 1
    """How many captures the rounds are spread over, in equal parts, one after the other: two
    captures of the same code differ by where they lie. Those of ``replay`` and ``against`` at one
    place were made and measured one right after the other."""


class Clock(msgspec.Struct, frozen=True, omit_defaults=True):
    """What NVML said beside the measurement."""

    sm_mhz: tuple[int, ...] = ()
    memory_mhz: tuple[int, ...] = ()
    temperature_c: tuple[int, ...] = ()
    power_w: tuple[float, ...] = ()
    throttle_reasons: tuple[str, ...] = ()
    other_processes: int | None = None
    """Other processes that had the GPU at work meanwhile; None when nobody could tell."""
    profiled: bool = False
    """Another profiler was attached to the process that measured."""


class Bench(msgspec.Struct, frozen=True, omit_defaults=True):
    """Eager against replay, interleaved in rounds."""

    samples: tuple[Samples, ...] = ()
    clock: Clock | None = None
    seed: int = 0
    timer_grain_ns: float | None = None


class Peak(msgspec.Struct, frozen=True, omit_defaults=True):
    """What this device reached when nothing else ran: the roof over a node."""

    dtype: str
    """``float32``, ``tf32``, ``bfloat16``, ``float16``, ``float64``: of a large matmul."""
    flops_per_s: float


class InputCopy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Copying a fresh value into a static input, which a user does before every replay."""

    name: str
    bytes: int
    copy_ns: float
    """From other device memory."""
    host_copy_ns: float | None = None
    """From pinned host memory."""
    rows: int | None = None
    """Size of its first dimension, where it has more than one."""
    padding_rows: int | None = None
    """Rows at its end that are all the same constant: padding, most likely."""


class GraphTimes(msgspec.Struct, frozen=True, omit_defaults=True):
    """One graph, replayed by itself."""

    graph: int
    """Index into ``Capture.graphs``."""
    replay_ns: tuple[float, ...] = ()
    """Single replays without any profiler, between two CUDA events, launched while the device was
    still busy, so that the host is not in the way."""
    empty_ns: tuple[float, ...] = ()
    """The same two events with nothing between them."""
    traced_ns: tuple[float, ...] = ()
    """Replays under the profiler: first start of a node to last end."""
    first_ns: float | None = None
    """Wall time of the very first replay, not uploaded, to the end of its work."""
    synced_ns: tuple[float, ...] = ()
    """Wall time of one replay and a synchronize behind it, one after the other."""
    queued_ns: float | None = None
    """Wall time of one replay of many that were launched without waiting between them: of an
    iteration of all graphs, its share by device time."""


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that ``cgtool profile`` measured beside the nodes' own times."""

    route: str
    """``cupti`` (records carry the node's id) or ``profiler`` (PyTorch's records, joined by their
    order where it is certain)."""
    graphs: tuple[GraphTimes, ...] = ()
    memory_bytes_per_s: float | None = None
    """Reached by a large copy on the device, read and written bytes together."""
    peaks: tuple[Peak, ...] = ()
    inputs: tuple[InputCopy, ...] = ()
    around_ns: float | None = None
    """What a graph takes beside its nodes, before the first and after the last: of one with a
    single kernel."""
    seconds: float | None = None
    """Wall time that the measurement took, beside the capture."""
