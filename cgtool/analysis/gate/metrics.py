"""What a gate can hold a budget or a baseline against: one table, and how a baseline keeps each."""

from __future__ import annotations

import os
from operator import truediv
from pathlib import Path

import msgspec

from cgtool.model.baseline import Baseline
from cgtool.model.measurements import whole


class Metric(msgspec.Struct, frozen=True):
    """One row of the table."""

    name: str
    """As options and ``pyproject.toml`` spell it; the unit is its last word."""
    means: str
    unit: str = ""
    source: str = "capture"
    """What finds it: ``capture``, ``bench``, ``check`` or ``verify``."""
    exact: bool = True
    """Counted; else timed, and judged with an interval."""
    larger_is_better: bool = False
    bounds: tuple[str, ...] = ("max",)
    """Which budgets it takes."""
    watched: bool = False
    """Held against a baseline without being asked for."""
    phases: bool = True
    """Known for each phase too."""
    simulated: bool = True
    """The simulated device has it."""
    host: bool = False
    """The host has a part in it: on another processor it is another time."""


METRICS = (
    Metric("graphs", "graphs captured", watched=True),
    Metric("nodes", "nodes of all graphs; on the simulated device, ops", bounds=("max", "min"),
           watched=True),
    Metric("kernels", "kernel nodes", bounds=("max", "min"), watched=True, simulated=False),
    Metric("copies", "memcpy nodes", watched=True, simulated=False),
    Metric("memsets", "memset nodes", watched=True, simulated=False),
    Metric("edges", "dependencies between nodes"),
    Metric("pool-mib", "memory reserved for the pools", "MiB", watched=True, phases=False),
    Metric("live-mib", "memory of the pools still held when the capture ends", "MiB", watched=True,
           phases=False),
    Metric("exec-mib", "memory of the driver for the executable graphs", "MiB",
           phases=False, simulated=False),
    Metric("findings", "errors and warnings of `cgtool check`", source="check", watched=True,
           phases=False),
    Metric("mismatches", "tensors that a replay leaves different from eager, over all trials; "
           "where none is, errors of `cgtool verify`",
           source="verify", watched=True, phases=False),
    Metric("capture-ms", "host time to capture, instantiate and upload all graphs", "ms",
           exact=False, phases=False, simulated=False, host=True),
    Metric("replay-us", "device time of one replay", "us", "bench", exact=False, watched=True,
           simulated=False),
    # Eager kernels wait for the host to launch them.
    Metric("eager-us", "device time of one eager iteration", "us", "bench", exact=False,
           simulated=False, host=True),
    Metric("speedup", "eager over replay", "x", "bench", exact=False, larger_is_better=True,
           bounds=("min",), simulated=False, host=True),
)  # fmt: skip
"""In the order of options and tables."""

BY_NAME = {metric.name: metric for metric in METRICS}


def key(metric: str, phase: str | None) -> str:
    """``nodes``, ``nodes.forward``: how a figure is named in a baseline and in messages."""
    return metric if phase is None else f"{metric}.{phase}"


def runs_of(values: Baseline, metric: Metric, phase: str | None) -> tuple[tuple[float, ...], ...]:
    """Samples of a time, one tuple a run, in the metric's unit; of ``speedup``, eager over replay
    round by round. Without a phase, of the whole iteration: ``step``, ``both``, or ``forward``.
    """
    if metric.name == "capture-ms":
        return tuple((one / 1e6,) for one in values.capture_ns)
    phase = phase or whole_phase(values)
    sides: dict[str, dict[int, tuple[float, ...]]] = {"eager": {}, "replay": {}}
    for one in values.samples:
        if one.phase == phase:
            sides[one.name][one.run] = one.device_ns
    if metric.name == "speedup":
        both = sides["eager"].keys() & sides["replay"].keys()
        return tuple(
            tuple(map(truediv, sides["eager"][run], sides["replay"][run])) for run in sorted(both)
        )
    side = sides[metric.name.partition("-")[0]]
    return tuple(tuple(one / 1e3 for one in rounds) for rounds in side.values())


def known(values: Baseline, metric: Metric, phase: str | None) -> bool:
    """Whether there is a figure."""
    if metric.exact:
        return key(metric.name, phase) in values.counts
    return bool(runs_of(values, metric, phase))


def whole_phase(values: Baseline) -> str:
    """The phase that is the whole iteration: of what was captured, not of what was timed."""
    return whole([name.removeprefix("graphs.") for name in values.counts])


def same_entry(left: str, right: str, folder: Path | None = None) -> bool:
    """Whether two specs name one entry: as text, or as files; ``right`` may be relative to
    ``folder``, the current one by default."""

    def absolute(spec: str, below: Path) -> str:
        file, colon, name = spec.rpartition(":")
        return os.path.normpath(below / file) + colon + name if file.endswith(".py") else spec

    if os.path.normpath(left) == os.path.normpath(right):
        return True
    here = Path.cwd()
    return absolute(left, here) == absolute(right, folder or here)
