"""The outputs of a gate: ``--format KIND`` and ``--format KIND=FILE``, several at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from cgtool.analysis.gate.judge import GateReport
from cgtool.cli.output import check_place, file_of, show_table, write_bytes
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.files import is_special

KINDS = ("table", "json", "junit", "github", "benchmark-action")
_TOGETHER = {"table", "github"}
"""Formats that can share standard output: text for people, and what GitHub picks out of a log."""

_FIGURES = {"table", "benchmark-action"}

Chosen = Sequence[tuple[str, Path | None]]


def parse(texts: Sequence[str], output: Path | None) -> Chosen:
    """Kinds and files. Raises CgtoolError (exit 2) for an unknown kind, and for two that cannot
    both be on standard output."""
    chosen: list[tuple[str, Path | None]] = []
    for text in texts or ("table",):
        kind, equals, file = text.partition("=")
        if kind not in KINDS:
            near = get_close_matches(kind, KINDS, n=1)
            raise usage(
                f"--format {text}: no format {kind!r}"
                + (f"; did you mean {near[0]}?" if near else ""),
                fix=", ".join(KINDS),
            )
        if equals and not file:
            raise usage(f"--format {text}: no file is named")
        chosen.append((kind, Path(file) if equals else None))
    plain = [kind for kind, file in chosen if file is None]
    if output is not None:
        if len(plain) != 1:
            raise usage(
                f"-o {output}: for one format, not for {' and '.join(plain) or 'none'}",
                fix="name a file for each: --format junit=gate.xml",
            )
        return [(kind, file or output) for kind, file in chosen]
    if (len(plain) > 1 and not set(plain) <= _TOGETHER) or len(plain) != len(set(plain)):
        raise usage(
            f"--format {' and '.join(plain)}: not both on standard output",
            fix="name a file for one: --format junit=gate.xml",
        )
    return chosen


def check_places(
    chosen: Chosen, targets: Sequence[str], bases: Sequence[Path], saved: Path | None
) -> None:
    """Raises CgtoolError (exit 2) where one file would be written over a target, a baseline or
    another result, and for a baseline that would be read as a capture. A baseline may be written
    over the one that it was compared with."""
    if saved is not None and saved.suffix == ".cgt":
        raise usage(
            f"--save-baseline {saved}: .cgt names a capture, and a baseline is JSON",
            fix=f"--save-baseline {saved.with_suffix('.json')}; a capture serves as a baseline "
            "as it is: --baseline FILE.cgt",
        )
    taken = {os.path.realpath(file_of(name)): f"the target {name}" for name in targets}
    named = [(f"--format {kind}", file) for kind, file in chosen]
    for option, file in (("--save-baseline", saved), *named):
        if file is None or is_special(file):
            continue
        check_place(file, option=option)
        place = os.path.realpath(file)
        read = {os.path.realpath(base): f"the baseline {base}" for base in bases}
        occupant = taken.get(place, None if file is saved else read.get(place))
        if occupant:
            raise usage(
                f"{option}: {file} would be written over {occupant}", fix="name another file"
            )
        taken[place] = f"the output of {option}"


def write(report: GateReport, chosen: Chosen, *, quiet: bool, explain: bool = False) -> None:
    """Every format to its place; GitHub's summary also where ``GITHUB_STEP_SUMMARY`` says. Where
    nothing was measured, those of figures alone are left out: standard error says why.

    Raises CgtoolError (exit 2) for a place that cannot be written, when all others are."""
    empty = all(target.error is not None for target in report.targets)
    failed: list[CgtoolError] = []
    for kind, file in chosen:
        if not (empty and kind in _FIGURES) and not (kind == "table" and file is None and quiet):
            try:
                _write(report, kind, file, explain=explain)
            except CgtoolError as error:
                failed.append(error)
    if failed:
        raise failed[0]


def _write(report: GateReport, kind: str, file: Path | None, *, explain: bool) -> None:
    if kind == "table":
        from cgtool.render.gate_table import render

        show_table(render(report, explain=explain), file)
        return
    sys.stdout.flush()
    write_bytes(_encoded(kind, report), file)
    if kind == "github":
        _summary(report)


def _encoded(kind: str, report: GateReport) -> bytes:
    if kind == "json":
        from cgtool.render.json import encode

        return encode("cgtool-gate", report)
    from cgtool.render import gate_formats

    if kind == "junit":
        return gate_formats.junit(report)
    if kind == "benchmark-action":
        return gate_formats.benchmark_action(report)
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    return gate_formats.github_commands(report, root).encode(errors="replace")


def _summary(report: GateReport) -> None:
    from cgtool.render import gate_formats

    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return
    path = Path(name)
    try:
        # All of a step's summary together is bounded.
        used = path.stat().st_size if path.exists() else 0
        with path.open("ab") as file:
            file.write(gate_formats.github_summary(report, gate_formats.MOST_BYTES - used).encode())
    except OSError as error:
        raise usage(
            f"GITHUB_STEP_SUMMARY names {path}, which cannot be written: {error.strerror}"
        ) from error
