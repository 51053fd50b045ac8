"""The reports of commands, as plain data: findings, comparisons, capabilities.

A code is the name of one failure mode; ``docs/findings/CODE.md`` is its page, which holds the
category, the severity and the general fix. A finding says where it is and why.
"""

from __future__ import annotations

from pathlib import Path
from typing import NewType

import msgspec

from cgtool.model.capture import Caveat, Entry, Environment, Frame, TensorValues
from cgtool.model.schema import Count, DurationNs

REPORT_VERSION = 1

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)

TOO_NOISY, NOTHING_COMPARED = "too-noisy", "nothing-compared"
"""Notes of ``verify`` that say why it has no answer."""


Code = NewType("Code", str)
"""A code that ``cgtool.findings.code`` has checked, or that was read from a file."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One hazard, mismatch or cause of a failed capture."""

    code: Code
    """Name of the failure mode: ``sync-item``. A report of a newer cgtool may hold one without a
    page."""
    reason: str
    """One sentence: what happens at this line, and what it leads to."""
    frames: tuple[Frame, ...] = ()
    """The Python call chain outside torch, innermost first; empty when no line causes it."""
    columns: tuple[Count, Count] | None = None
    """The expression in the line of the innermost frame that is not an installed library's: UTF-8
    offsets of its start and end, as of ``codeobject.co_positions()``; the end is 0 if it is in a
    later line. None if only the line is known."""
    source: str = ""
    """That line, as it was when the code ran, with its indentation; empty if it is not known."""
    module: str | None = None
    """Path of the innermost ``nn.Module``; ``""`` is the root module."""
    forward: tuple[Frame, ...] = ()
    """In backward: the chain of the forward call whose gradient was being computed."""
    forward_source: str = ""
    """The line of ``forward``, likewise."""
    phase: str | None = None
    """``load``, ``warm-up``, ``forward``, ``backward``, ``step``, ``replay``, ``script``."""
    fix: str | None = None
    """The fix, if this case has a more specific one than the page."""
    evidence: tuple[str, ...] = ()
    """One line each: the driver's message, two values that differ, bytes, counts."""
    severity: str | None = None
    """``error``, ``warning``, ``note``; None: the page's."""
    times: Count = 1
    """How often it happened at this line."""
    graphs: tuple[Count, ...] = ()
    """In the ledger of a program: the graphs that it is about, by number."""


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor of a replay compared with eager (``cgtool verify``)."""

    name: str
    """``output``, ``output.0``, ``gradient of layers.0.weight``, ``running_mean``."""
    kind: str
    """``output``, ``gradient``, ``state``."""
    trial: str
    """``captured inputs``, ``fresh inputs``, ``replay 2``, ..."""
    equal: bool
    """Equal within the tolerance."""
    exact: bool = False
    """Equal to the last bit."""
    largest: int | float | None = None
    """Largest absolute difference, exact for integers; None if it is not a number, or if there is a
    ``mismatch``."""
    relative: float | None = None
    """``largest`` over the largest magnitude of the eager values."""
    tolerance: int | float | None = None
    """The largest absolute difference that is allowed: from eager's own run-to-run noise, or where
    there is an ``error``, the largest error."""
    noise: int | float | None = None
    """Largest absolute difference of eager against eager."""
    error: float | None = None
    """If a replay may round differently: its difference from a float64 run, as the largest, or as
    the root mean square if that one is too large."""
    eager_error: float | None = None
    """The error of eager."""
    mismatch: str | None = None
    """Why there is nothing to subtract: ``shape [7, 8], not [8, 8]``, as eager has it."""


class NodeValues(msgspec.Struct, frozen=True):
    """The last node of an op, and what the op has written."""

    graph: str
    node: int
    op: str
    module: str | None
    file: str | None
    line: int | None
    tensors: tuple[TensorValues, ...]


class Report(msgspec.Struct, frozen=True):
    """The report of ``cgtool check`` or ``cgtool verify``."""

    command: str
    entry: Entry
    environment: Environment
    created: str
    cgtool: str
    findings: tuple[Finding, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    values: tuple[NodeValues, ...] = ()
    """Of the first replay that ``cgtool debug`` has stepped."""
    notes: tuple[Caveat, ...] = ()
    """Limits of the answer: the simulated device, a capture that could not be tried."""
    looked_at: tuple[str, ...] = ()
    """Steps that were done, in order: ``2 eager iterations recorded``, ``forward captured``."""
    elapsed_ns: DurationNs = 0
    schema_version: int = REPORT_VERSION
    interrupted: bool = False
    """Ctrl-C ended the script: what it would have done later was not checked."""


class Capability(msgspec.Struct, frozen=True, omit_defaults=True):
    """One feature. ``state`` is ``available``, ``degraded`` or ``absent``."""

    name: str
    state: str
    how: str
    """How it is available, or what cgtool does without it."""
    remedy: str | None = None
    """How to get it."""
    gpu: bool = False
    """Relevant only with a GPU."""


def read_report(path: Path) -> Report:
    """The report that a worker wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Report)
