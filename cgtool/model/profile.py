"""Where the time of a replay goes, as it was measured on a GPU (``cgtool profile``).

Durations are nanoseconds of the device unless a name says otherwise. The time of each node stands
in the node itself (``Node.start_ns``, ``Node.duration_ns``).
"""

from __future__ import annotations

import msgspec


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
