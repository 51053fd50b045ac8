"""What a gate reads: saved captures, reports and baselines, entries to measure, and the project's
``pyproject.toml``."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz, process

from cgtool.analysis.gate.budgets import SECTION, Project, entries, same_entry, section
from cgtool.analysis.gate.measured import measure
from cgtool.cli.workers import check_name
from cgtool.model import baseline as baselines
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture
from cgtool.model.capture_file import read
from cgtool.model.failure import usage
from cgtool.model.files import JsonFormat, is_file, read_bytes
from cgtool.model.finding import REPORT_VERSION, Report

_MIN_SIMILARITY = 80
"""Similarity of names out of 100 (``fuzz.ratio``); swapping two letters leaves more than this."""
_REPORTS = {"cgtool-check": "check", "cgtool-verify": "verify"}
"""The schemas of reports, and the command that writes each."""
_REPORT_FORMAT = JsonFormat(
    "report of check or verify",
    dict.fromkeys(_REPORTS, REPORT_VERSION),
    "with `cgtool check ENTRY --format json -o FILE`, or `cgtool verify`",
)


@dataclass
class Target:
    """One entry: its saved captures and reports, or what is measured."""

    spec: str
    captures: list[Capture] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    files: tuple[str, ...] = ()
    live: bool = False
    """To be measured now."""


@dataclass(frozen=True)
class Base:
    """A baseline, and the capture that it was taken from, if there is one."""

    path: Path
    values: Baseline
    capture: Capture | None = None


def open_targets(names: Sequence[str]) -> list[Target]:
    """One target for each capture and ENTRY; a report belongs to the target of its entry.

    Raises CgtoolError (exit 2) for what is neither.
    """
    targets: list[Target] = []
    loose: list[tuple[str, Report]] = []
    for name in names:
        check_name(name)
        path = Path(name)
        exists = is_file(path) and ":" not in name
        if name.endswith(".cgt") or (exists and _is_zip(path)):
            capture = read(path)
            targets.append(Target(capture.entry.spec, [capture], files=(name,)))
        elif name.endswith(".json") or exists:
            loose.append((name, _report(path)))
        elif ":" in name:
            targets.append(Target(name, live=True))
        else:
            raise usage(
                f"{name}: neither a capture, a report, nor an ENTRY",
                fix="give .cgt files, JSON of `cgtool check` or `cgtool verify`, or "
                "path/to/file.py:name",
            )
    for name, report in loose:
        owners = [target for target in targets if same_entry(target.spec, report.entry.spec)]
        if not owners:
            owners = [Target(report.entry.spec)]
            targets += owners
        for target in owners:
            target.reports.append(report)
            target.files += (name,)
    return targets


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
        # Reading it reports the error.
        return False


def open_baseline(path: Path) -> Base:
    """A baseline file, or a capture that serves as one. Raises CgtoolError (exit 2)."""
    if path.suffix == ".cgt" or (is_file(path) and _is_zip(path)):
        capture = read(path)
        return Base(path, measure([capture]).values, capture)
    return Base(path, baselines.read(path))


# --- pyproject.toml


def find_project(folder: Path) -> Project | None:
    """The nearest ``pyproject.toml`` with a ``[tool.cgtool]`` table, from the folder upwards.
    Raises CgtoolError (exit 2) for a file on the way that is not TOML, or misspells that table."""
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        if is_file(path):
            data = read_bytes(path, "a pyproject.toml")
            try:
                content = tomllib.loads(data.decode())
            except (ValueError, RecursionError) as error:
                raise usage(f"{path}: not valid TOML: {error}") from error
            _misspelled(path, content)
            tool = content.get("tool")
            if isinstance(tool, dict) and "cgtool" in tool:
                return Project(path, tool["cgtool"])
    return None


def _misspelled(path: Path, content: dict[str, Any]) -> None:
    """Raises CgtoolError (exit 2) for a table that is almost ours: its budgets would be ignored.
    Another tool's name may be similar, but its table has no ``gate``."""
    tables = dict(content)
    for name, value in content.items():
        if isinstance(value, dict):
            tables |= {f"{name}.{inner}": table for inner, table in value.items()}
    for name, table in tables.items():
        near = name == "cgtool" or fuzz.ratio(name.lower(), "tool.cgtool") >= _MIN_SIMILARITY
        if near and name != "tool.cgtool" and isinstance(table, dict) and "gate" in table:
            raise usage(
                f"{path}: [{name[:80]}.gate] is ignored: cgtool does not read it",
                fix=f"did you mean [{SECTION}]?",
            )


def project_targets(project: Project | None) -> list[str]:
    """The entries that have a table in ``pyproject.toml``, as seen from the current folder. Raises
    CgtoolError (exit 2) if there is none."""
    names = [] if project is None else [name for name in entries(project) if ":" in name]
    if project is None or not names:
        where = "there is no [tool.cgtool.gate]" if project is None else f"{project.path} has none"
        raise usage(
            "no TARGET, and no entry in pyproject.toml",
            why=where,
            fix=f"give a TARGET, or a table for an entry: [{section('path/to/file.py:name')}]",
        )
    folder = project.path.parent
    return [os.path.relpath(folder / name) if _names_file(name) else name for name in names]


def misplaced_tables(project: Project, specs: Sequence[str]) -> list[tuple[str, str]]:
    """Tables of entries that are probably misnamed: the one of ``specs`` (the entries gated
    now) that it concerns most, and a sentence.

    A table of another entry is fine: another command may gate it. One that names no entry of the
    project is not, whatever is gated. Raises CgtoolError (exit 2) where it is almost the name of an
    entry that is gated and has no table.
    """
    folder = project.path.parent
    names = entries(project)
    without = [spec for spec in specs if not any(same_entry(spec, name, folder) for name in names)]
    misplaced = []
    for name in names:
        if any(same_entry(spec, name, folder) for spec in specs):
            continue
        missing = _missing(folder, name)
        near = process.extractOne(name, without, scorer=fuzz.ratio, score_cutoff=_MIN_SIMILARITY)
        where = f"{project.path}: [{section(name)}]"
        if near is not None and missing and not _missing(Path(), near[0]):
            raise usage(
                f"{where} names no entry: {missing}",
                why=f"{near[0]} has no table, and the budgets of this one would not apply to it",
                fix=f"did you mean [{section(near[0])}]?",
            )
        if near is not None and (missing or not _names_file(name)):
            misplaced.append((near[0], f"{where} is not used: it is for {name}, not for {near[0]}"))
        elif near is None and missing and any(not _missing(Path(), spec) for spec in specs):
            misplaced.append((specs[0], f"{where} is ignored: {missing}"))
    return misplaced


def _names_file(spec: str) -> bool:
    target = spec.rpartition(":")[0]
    return target.endswith(".py") or os.sep in target


def _missing(folder: Path, spec: str) -> str | None:
    """Why there is no such entry; None if there may be one: modules are not looked for."""
    target, _, name = spec.rpartition(":")
    if not _names_file(spec):
        return None
    path = folder / target
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return f"there is no {path}"
    except (OSError, ValueError):
        return None
    first = name.partition(".")[0]
    if re.search(rf"\b{re.escape(first)}\b", text) or "import *" in text:
        return None
    return f"{path} has no {first}"
