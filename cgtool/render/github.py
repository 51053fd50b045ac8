"""Verdicts for GitHub Actions: workflow commands, which become annotations, and a job summary.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands : a step shows
at most ten annotations of a kind, and a summary of more than 1 MiB is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from cgtool.analysis.gate.report import ERROR, FAIL, PASS, UNKNOWN, GateReport, Judged, Verdict
from cgtool.model.capture import Frame
from cgtool.model.failure import Failure
from cgtool.render.gate_table import (
    WORDS,
    conclusion,
    details,
    error_lines,
    explained,
    measured_text,
    place_text,
    sentence,
)
from cgtool.render.text import visible

MOST_ANNOTATIONS = 10
MOST_BYTES = 1024 << 10

_KINDS = {FAIL: "error", UNKNOWN: "warning"}
_MARKS = {PASS: "✅", FAIL: "❌", UNKNOWN: "❔", ERROR: "❌"}


def commands(report: GateReport, root: Path) -> str:
    """``::error`` for what was not measured and what failed, ``::warning`` for what cannot be told;
    nothing for the rest.

    ``root`` is the top of the checkout, which annotations name their files from.
    """
    targets = list(zip(report.names(), report.targets, strict=True))
    lines = []
    for kind in (FAIL, UNKNOWN):
        errors = ((name, one.error) for name, one in targets if one.error is not None)
        some = [_error(name, one, root) for name, one in errors if kind == FAIL]
        some += [
            _command(name, one, root)
            for name, target in targets
            for one in target.verdicts
            if one.verdict == kind
        ]
        shown = some if len(some) <= MOST_ANNOTATIONS else some[: MOST_ANNOTATIONS - 1]
        lines += shown
        if len(shown) < len(some):
            rest = f"{len(some) - len(shown)} more: see the job summary"
            lines.append(f"::{_KINDS[kind]} title=cgtool gate::{message((rest,))}")
    return "".join(f"{line}\n" for line in lines)


def _command(entry: str, verdict: Verdict, root: Path) -> str:
    title = f"{entry}: {verdict.metric} {WORDS[verdict.verdict]}"
    text = message((sentence(verdict), *details(verdict)))
    return f"::{_KINDS[verdict.verdict]} {_properties(verdict.frame, title, root)}::{text}"


def _error(entry: str, error: Failure, root: Path) -> str:
    frame = next((one for one in error.frames if one.file), None)
    text = message((error.what, *error_lines(error)))
    return f"::error {_properties(frame, f'{entry} not measured', root)}::{text}"


def _properties(frame: Frame | None, title: str, root: Path) -> str:
    place = {} if frame is None else {"file": from_root(frame, root), "line": str(frame.line)}
    named = {**place, "title": title}
    return ",".join(f"{name}={value_of(value)}" for name, value in named.items())


def message(lines: Iterable[str]) -> str:
    """Text of a workflow command, which ends at the end of the line. What does not print shows as
    an escape: terminals and logs act on it."""
    return "%0A".join(visible(line).replace("%", "%25") for line in lines)


def value_of(text: str) -> str:
    """The value of a property, which ends at a comma or a colon too."""
    return message((text,)).replace(":", "%3A").replace(",", "%2C")


def from_root(frame: Frame, root: Path) -> str:
    """The file from the top of the checkout; as it is when it lies elsewhere."""
    path = os.path.abspath(frame.file)  # noqa: PTH100 : resolve() would follow links away
    try:
        return Path(path).relative_to(root).as_posix()
    except ValueError:
        return frame.file


def summary(report: GateReport, most: int = MOST_BYTES) -> str:
    """Markdown for ``$GITHUB_STEP_SUMMARY``, cut where GitHub would refuse it."""
    parts = [f"## cgtool gate {_MARKS[report.verdict]} {cell(conclusion(report).plain)}\n"]
    parts += [_section(*pair) for pair in zip(report.names(), report.targets, strict=True)]
    return cut("\n".join(parts), most)


def cut(text: str, most: int = MOST_BYTES) -> str:
    """At most so many bytes, whole lines, and a word where something was left out, if even that
    has room."""
    data = text.encode(errors="replace")
    if len(data) <= most:
        return data.decode()
    note = "\n\n_The rest is left out: GitHub shows no longer summary._\n"
    room = most - len(note.encode())
    return data[:room].decode(errors="ignore").rpartition("\n")[0] + note if room >= 0 else ""


def _section(name: str, target: Judged) -> str:
    if target.error is not None:
        told = (target.error.what, *error_lines(target.error))
        return "\n".join((f"### {cell(name)}", "", *(f"- {cell(line)}" for line in told), ""))
    device = "the simulated device" if target.simulated else target.device
    baseline = f", against {target.baseline}" if target.baseline else ""
    lines = [
        f"### {cell(name)}",
        "",
        cell(f"{device}, torch {target.torch}{baseline}"),
        "",
        "| | metric | measured | held to | |",
        "|---|---|---:|---|---|",
    ]
    for one in target.verdicts:
        row = (
            f"{_MARKS[one.verdict]} {WORDS[one.verdict]}",
            one.metric,
            measured_text(one),
            one.held_to,
            one.text,
        )
        lines.append(f"| {' | '.join(map(cell, row))} |")
    lines.append("")
    for one, why in explained(target):
        place = place_text(one)
        lines.append(f"**{cell(one.metric)}**{f' at {cell(place)}' if place else ''}\n")
        lines += [f"- {cell(line)}" for line in why]
        lines.append("")
    lines += [f"> {cell(note)}\n" for note in target.notes]
    return "\n".join(lines) + "\n"


_MARKDOWN = str.maketrans({one: f"\\{one}" for one in "\\`*_{}[]<>|#~$"} | {"&": "&amp;"})
_BLOCK = re.compile(r"\A(?:[-+](?= |\Z)|-(?=[- ]*\Z)|\d{1,9}[.)](?= |\Z))")
"""What makes a list or a rule of a line that begins with it."""
_LINK = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)


def cell(text: str) -> str:
    """One line of plain text in Markdown: nothing in it is read as markup, no address becomes a
    link, and what does not print shows as an escape."""
    shown = visible(text).strip(" ").translate(_MARKDOWN)
    for odd in (_BLOCK, _LINK):
        shown = odd.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", shown)
    return shown
