"""Measurements of a capture: by ``cgtool bench`` and ``cgtool profile``.

Durations are nanoseconds of the device unless a name says otherwise. The time of each node is in
the node itself (``Node.start_ns``, ``Node.duration_ns``).
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from cgtool.model.schema import Bytes, Count, GraphIndex, MeasuredNs, PerSecond, Positive, Signed

PHASES = ("forward", "backward", "both", "step")
"""In the order of tables. ``both`` is not a graph: it is forward and backward timed together."""


def whole(phases: Container[str]) -> str:
    """The phase that is the whole iteration, of the phases that were captured or timed: ``step``,
    ``both`` if there is a backward, else ``forward``."""
    if "step" in phases:
        return "step"
    return "both" if "both" in phases or "backward" in phases else "forward"


class Samples(msgspec.Struct, frozen=True, omit_defaults=True):
    """Raw timings of one thing, one number per round."""

    name: str
    """``eager``, ``replay``, or ``against``: replays of the entry that this one is
    compared with."""
    phase: str
    """``forward``, ``backward``, ``both`` or ``step``."""
    device_ns: tuple[MeasuredNs, ...] = ()
    """Per round: mean device time of one iteration, between two CUDA events."""
    host_ns: tuple[MeasuredNs, ...] = ()
    """Per round: mean host time to enqueue one iteration while the GPU's queue is short."""
    iterations: Positive = 1
    """Iterations inside each pair of events."""
    pairs: Positive = 1
    """Pairs of events in a round."""
    run: Count = 0
    """Which worker process measured it, from 0: memory layout differs from process to process."""
    behind: str | None = None
    """The phase that ran, untimed, right before each iteration: ``forward`` for a backward."""
    captures: Positive = 1
    """How many captures the rounds are spread over, in equal parts, one after the other: two
    captures of the same code differ by their memory layout. The captures of ``replay`` and
    ``against`` with the same number were made and measured one right after the other."""
    lead_in: Count = 0
    """Untimed iterations that ran right before the timed ones of a round, so that those began on a
    busy GPU. 0: they began on an idle one, as in files older than this field."""


class Clock(msgspec.Struct, frozen=True, omit_defaults=True):
    """Clocks and throttling that NVML reported during the measurement."""

    sm_mhz: tuple[Signed, ...] = ()
    memory_mhz: tuple[Signed, ...] = ()
    temperature_c: tuple[Signed, ...] = ()
    power_w: tuple[float, ...] = ()
    throttle_reasons: tuple[str, ...] = ()
    other_processes: Count | None = None
    """Other processes that used the GPU meanwhile; None when that is unknown."""
    profiled: bool = False
    """Another profiler was attached to the process that measured."""


class Bench(msgspec.Struct, frozen=True, omit_defaults=True):
    """Eager and replay, interleaved in rounds."""

    samples: tuple[Samples, ...] = ()
    clock: Clock | None = None
    seed: Signed = 0
    """Seeds the order of the rounds."""
    timer_grain_ns: MeasuredNs | None = None
    """Resolution of the times between two CUDA events."""


class Peak(msgspec.Struct, frozen=True, omit_defaults=True):
    """The peak rate that this device reached when nothing else ran."""

    dtype: str
    """``float32``, ``tf32``, ``bfloat16``, ``float16``, ``float64``: of a large matmul."""
    flops_per_s: PerSecond


class InputCopy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Copying a fresh value into a static input, which a user does before every replay."""

    name: str
    bytes: Bytes
    copy_ns: MeasuredNs
    """From other device memory."""
    host_copy_ns: MeasuredNs | None = None
    """From pinned host memory."""
    rows: Count | None = None
    """Size of its first dimension, where it has more than one."""
    padding_rows: Count | None = None
    """Rows at its end that hold one constant: padding, most likely."""


class GraphTimes(msgspec.Struct, frozen=True, omit_defaults=True):
    """One graph, replayed alone."""

    graph: GraphIndex
    replay_ns: tuple[MeasuredNs, ...] = ()
    """Single replays without a profiler, between two CUDA events, launched while the device was
    still busy, so that launch time does not count."""
    empty_ns: tuple[MeasuredNs, ...] = ()
    """Time between two events with nothing between them."""
    traced_ns: tuple[MeasuredNs, ...] = ()
    """Replays under the profiler: first start of a node to last end."""
    first_ns: MeasuredNs | None = None
    """Wall time of the very first replay, not uploaded, to the end of its work."""
    synced_ns: tuple[MeasuredNs, ...] = ()
    """Wall time of replay + synchronize, one after the other."""
    queued_ns: MeasuredNs | None = None
    """Time of one of many back-to-back replays on a GPU that is already busy: this graph's share,
    by device time, of an iteration of all graphs."""


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that ``cgtool profile`` measured except the nodes' own times."""

    route: str
    """``cupti`` (records carry the node's id) or ``profiler`` (PyTorch's records, joined by their
    order where it is certain)."""
    graphs: tuple[GraphTimes, ...] = ()
    memory_bytes_per_s: PerSecond | None = None
    """Reached by a large copy on the device, read and written bytes together."""
    peaks: tuple[Peak, ...] = ()
    inputs: tuple[InputCopy, ...] = ()
    around_ns: float | None = None
    """Time of a graph outside its nodes, before the first and after the last: of a graph with a
    single kernel."""
    seconds: float | None = None
    """Wall time of the measurement, without the capture."""
