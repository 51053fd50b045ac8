"""The file that a gate compares with: what the graphs of one entry held, counted and timed.

It is a small JSON text, made to lie beside the code: keys in a fixed order, one count a line, the
times of one run in one line, so that a review can read what a change did to it. Times are kept
raw, so that an old baseline can be judged by statistics that came later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from cgtool.model.capture import Entry, Environment
from cgtool.model.files import JsonFormat, atomic, encodable
from cgtool.model.measurements import Clock, Samples

SCHEMA = "cgtool-baseline"
SCHEMA_VERSION = 1

_MOST = 1 << 63
_FORMAT = JsonFormat(
    "baseline", {SCHEMA: SCHEMA_VERSION}, "with `cgtool gate TARGET --save-baseline FILE`"
)


class Baseline(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was counted and timed of one entry on one machine."""

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
    """Nodes by op (``addmm``): what a change of the counts is explained with."""
    capture_ns: tuple[int, ...] = ()
    """Host time to capture, instantiate and upload all graphs; one number a run."""
    samples: tuple[Samples, ...] = ()
    """Device times, eager and replay, per phase and run."""
    clock: Clock | None = None
    """What the GPU did meanwhile, in one number each: the clocks at work, the highest temperature
    and power."""


def write(path: Path, baseline: Baseline) -> None:
    """Whole or not at all. Raises CgtoolError (exit 2) when the place cannot be written."""
    with atomic(path) as temporary:
        temporary.write_bytes(encode(baseline))


def encode(baseline: Baseline) -> bytes:
    """The text of the file: equal baselines make equal texts."""
    # Where the file lay on the machine that measured says nothing on another.
    entry = msgspec.structs.replace(baseline.entry, file=None, line=None)
    samples = tuple(
        msgspec.structs.replace(one, device_ns=tuple(round(time, 3) for time in one.device_ns))
        for one in baseline.samples
    )
    kept = msgspec.structs.replace(baseline, entry=entry, samples=samples)
    body = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **msgspec.to_builtins(kept)}
    return "".join([*_lines(body, 0), "\n"]).encode()


def _lines(value: Any, depth: int) -> Iterable[str]:
    """Objects with one key a line, lists of anything but numbers with one item a line."""
    pad = "  " * (depth + 1)
    if isinstance(value, dict) and value and depth < 2:
        for number, (key, inner) in enumerate(value.items()):
            yield f"{',' if number else '{'}\n{pad}{_compact(key)}: "
            yield from _lines(inner, depth + 1)
        yield f"\n{'  ' * depth}}}"
    elif isinstance(value, list | tuple) and any(isinstance(one, dict | list) for one in value):
        for number, one in enumerate(value):
            yield f"{',' if number else '['}\n{pad}{_compact(one)}"
        yield f"\n{'  ' * depth}]"
    else:
        yield _compact(value)


def _compact(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(encodable(value)), indent=0).decode()


def read(path: Path) -> Baseline:
    """Read a baseline. Raises CgtoolError (exit 2) for every file that is not a sound one."""
    _, baseline = _FORMAT.read(path, Baseline)
    problem = inconsistency(baseline)
    if problem is not None:
        raise _FORMAT.bad(path, problem)
    return baseline


def inconsistency(baseline: Baseline) -> str | None:
    """The first thing that no machine could have measured, in words; None for a sound baseline."""
    for name, count in (*baseline.counts.items(), *baseline.ops.items()):
        if not 0 <= count < _MOST:
            return f"{name[:80]!r} is {'negative' if count < 0 else 'beyond all bounds'}"
    if not all(0 < one < _MOST for one in baseline.capture_ns):
        return "a capture that took no time, or for ever"
    seen = set()
    for one in baseline.samples:
        which = f"{one.name} {one.phase} of run {one.run}"[:80]
        if one.name not in ("eager", "replay"):
            return f"times of {one.name[:80]!r}, which is neither eager nor replay"
        if one.run < 0 or not one.device_ns:
            return f"{which} has no times"
        if not all(math.isfinite(time) and time > 0 for time in one.device_ns):
            return f"{which} has a time of {min(one.device_ns)} ns"
        if which in seen:
            return f"{which} is there twice"
        seen.add(which)
    return None
