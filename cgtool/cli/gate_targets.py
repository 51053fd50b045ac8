"""What a gate is pointed at: saved captures, reports and baselines, and entries to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cgtool.analysis.gate.budgets import same_entry
from cgtool.analysis.gate.measured import measure
from cgtool.cli.attempts import check_name
from cgtool.model import baseline as baselines
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture
from cgtool.model.capture_file import read
from cgtool.model.failure import usage
from cgtool.model.files import JsonFormat, is_file
from cgtool.model.finding import REPORT_VERSION, Report

_REPORTS = {"cgtool-check": "check", "cgtool-verify": "verify"}
"""The schemas of reports, and the command that writes each."""
_REPORT_FORMAT = JsonFormat(
    "report of check or verify",
    dict.fromkeys(_REPORTS, REPORT_VERSION),
    "with `cgtool check ENTRY --format json -o FILE`, or `cgtool verify`",
)


@dataclass
class Target:
    """One entry: what was saved of it, or what is measured of it."""

    spec: str
    captures: list[Capture] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    files: tuple[str, ...] = ()
    live: bool = False
    """To be measured now."""


@dataclass(frozen=True)
class Base:
    """A baseline, and the capture that it was taken from, where it is one."""

    path: Path
    values: Baseline
    capture: Capture | None = None


def open_targets(names: Sequence[str]) -> list[Target]:
    """One target a capture and an ENTRY; reports belong to those of the same entry.

    Raises CgtoolError (exit 2) for what is neither.
    """
    found: list[Target] = []
    loose: list[tuple[str, Report]] = []
    for name in names:
        check_name(name)
        path = Path(name)
        exists = is_file(path) and ":" not in name
        if name.endswith(".cgt") or (exists and _is_zip(path)):
            capture = read(path)
            found.append(Target(capture.entry.spec, [capture], files=(name,)))
        elif name.endswith(".json") or exists:
            loose.append((name, _report(path)))
        elif ":" in name:
            found.append(Target(name, live=True))
        else:
            raise usage(
                f"{name}: neither a capture, a report, nor an ENTRY",
                fix="give .cgt files, JSON of `cgtool check` or `cgtool verify`, or "
                "path/to/file.py:name",
            )
    for name, report in loose:
        owners = [one for one in found if same_entry(one.spec, report.entry.spec)]
        if not owners:
            owners = [Target(report.entry.spec)]
            found += owners
        for one in owners:
            one.reports.append(report)
            one.files += (name,)
    return found


def _report(path: Path) -> Report:
    schema, report = _REPORT_FORMAT.read(path, Report)
    if report.command != _REPORTS[schema]:
        raise _REPORT_FORMAT.bad(path, f"{schema} of the command {report.command[:80]!r}")
    return report


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        # Whoever reads it says so.
        return False


def open_baseline(path: Path) -> Base:
    """A baseline file, or a capture that serves as one. Raises CgtoolError (exit 2)."""
    if path.suffix == ".cgt" or (is_file(path) and _is_zip(path)):
        capture = read(path)
        return Base(path, measure([capture]).values, capture)
    return Base(path, baselines.read(path))
