"""The file that a gate compares with: counts and times of the graphs of one entry.

It is a small JSON file, to be kept in the repository: keys in a fixed order, one count a line, the
times of one run in one line, so that a review can read what a change did to it. Times are raw, so
that later statistics can judge an old baseline.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from cgtool.model.capture import Entry, Environment
from cgtool.model.files import JsonFormat, atomic, encodable
from cgtool.model.measurements import Clock, Samples
from cgtool.model.schema import MAX_INT, Bytes, Positive

SCHEMA = "cgtool-baseline"
SCHEMA_VERSION = 1

_FORMAT = JsonFormat(
    "baseline", {SCHEMA: SCHEMA_VERSION}, "with `cgtool gate TARGET --save-baseline FILE`"
)


class Baseline(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts and times of one entry on one machine."""

    entry: Entry
    environment: Environment
    created: str
    """UTC, ISO 8601."""
    cgtool: str
    """Version that measured it."""
    counts: dict[str, int | float]
    """By name of the metric (``nodes``), and of the metric and the phase (``nodes.forward``), in
    the unit that the name says."""
    ops: dict[str, int] = {}
    """Nodes by op (``addmm``), which explain a change of the counts."""
    memory: dict[str, tuple[Bytes, Bytes]] = {}
    """Bytes of a pool's blocks at the peak and at the end of the capture, by op and module (``addmm
    in layers.0``), which explain a change of the memory."""
    capture_ns: tuple[Positive, ...] = ()
    """Host time to capture, instantiate and upload all graphs; one number per run."""
    samples: tuple[Samples, ...] = ()
    """Device times, eager and replay, per phase and run."""
    clock: Clock | None = None
    """The GPU meanwhile, one number each: clocks under load, highest temperature and power."""


def write(path: Path, baseline: Baseline) -> None:
    """Write it, whole or not at all. Raises CgtoolError (exit 2) when that fails."""
    with atomic(path) as temporary:
        temporary.write_bytes(encode(baseline))


def encode(baseline: Baseline) -> bytes:
    """The text of the file: equal baselines make equal texts."""
    # The path on the machine that measured means nothing on another.
    entry = msgspec.structs.replace(baseline.entry, file=None, line=None)
    samples = tuple(
        msgspec.structs.replace(
            sample, device_ns=tuple(round(time, 3) for time in sample.device_ns)
        )
        for sample in baseline.samples
    )
    kept = msgspec.structs.replace(baseline, entry=entry, samples=samples)
    body = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **msgspec.to_builtins(kept)}
    return "".join([*_lines(body, 0), "\n"]).encode()


def _lines(value: Any, depth: int) -> Iterable[str]:
    """Objects with one key per line, other lists than of numbers with one item per line."""
    pad = "  " * (depth + 1)
    if isinstance(value, dict) and value and depth < 2:
        for number, (key, inner) in enumerate(value.items()):
            yield f"{',' if number else '{'}\n{pad}{_compact(key)}: "
            yield from _lines(inner, depth + 1)
        yield f"\n{'  ' * depth}}}"
    elif isinstance(value, list | tuple) and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value):
            yield f"{',' if number else '['}\n{pad}{_compact(item)}"
        yield f"\n{'  ' * depth}]"
    else:
        yield _compact(value)


def _compact(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(encodable(value)), indent=0).decode()


def read(path: Path) -> Baseline:
    """Read a baseline. Raises CgtoolError (exit 2) for every file that is not a consistent one."""
    _, baseline = _FORMAT.read(path, Baseline)
    problem = inconsistency(baseline)
    if problem is not None:
        raise _FORMAT.bad(path, problem)
    return baseline


def inconsistency(baseline: Baseline) -> str | None:
    """The first contradiction in a baseline, in words; None for a consistent one."""
    for name, count in (*baseline.counts.items(), *baseline.ops.items()):
        if not 0 <= count <= MAX_INT:
            return f"{name[:80]!r} is {'negative' if count < 0 else 'too large'}"
    names = set()
    for sample in baseline.samples:
        name = f"{sample.name} {sample.phase} of run {sample.run}"[:80]
        if sample.name not in ("eager", "replay"):
            return f"times of {sample.name[:80]!r}, which is neither eager nor replay"
        if not sample.device_ns:
            return f"{name} has no times"
        if min(sample.device_ns) == 0:
            return f"{name} has a time of 0 ns"
        if name in names:
            return f"{name} is repeated"
        names.add(name)
    return None
