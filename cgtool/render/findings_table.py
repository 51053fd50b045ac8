"""Findings as text: what, where with the source line, why, and what to write instead."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cgtool.analysis.findings import Shown, show
from cgtool.model.capture import Frame
from cgtool.model.finding import ERROR, NOTE, SEVERITIES, Finding, Report
from cgtool.render.source import source_line
from cgtool.render.table import BAD, GOOD, WARNING, plain

_STYLE = {ERROR: BAD, "warning": WARNING, NOTE: "cyan"}
_SHOWN_CALLS = 3


def severity_style(severity: str) -> str:
    return _STYLE.get(severity, "")


def render(findings: Sequence[Finding]) -> RenderableType:
    """One block a finding, the worst first."""
    parts: list[RenderableType] = []
    for one in show(findings):
        parts += [_block(one), ""]
    return Group(*parts[:-1])


def render_report(report: Report) -> RenderableType:
    """The screen of ``cgtool check``."""
    found = show(report.findings)
    head = plain(report.entry.spec, "bold")
    device = report.environment.device
    head.append("  ")
    head.append_text(
        plain("on the simulated device", WARNING)
        if report.environment.simulated
        else plain(f"on {device}")
    )
    parts: list[RenderableType] = [head, ""]
    for one in found:
        parts += [_block(one), ""]
    parts.append(_verdict(found))
    if report.looked_at:
        parts.append(plain("looked at: " + "; ".join(report.looked_at), "dim"))
    parts += [plain(f"note: {note.text}", "dim") for note in report.notes]
    return Group(*parts)


def _verdict(found: Sequence[Shown]) -> Text:
    if not found:
        return plain("nothing found", GOOD)
    count = Counter(one.severity for one in found)
    words = [
        f"{count[one]} {one}{'s' if count[one] > 1 else ''}" for one in SEVERITIES if count[one]
    ]
    worst = next(one for one in SEVERITIES if count[one])
    return plain(", ".join(words), f"bold {_STYLE[worst]}")


def _block(one: Shown) -> RenderableType:
    head = plain(one.severity, f"bold {_STYLE[one.severity]}")
    head.append_text(plain(f" {one.code}", "bold"))
    head.append_text(plain(f"  {one.title}"))
    rows = Table.grid(padding=(0, 1))
    rows.add_column(no_wrap=True, style="dim", justify="right")
    rows.add_column()
    for name, text in _rows(one):
        rows.add_row(plain(name), text)
    return Group(head, Padding(rows, (0, 0, 0, 2)))


def _rows(one: Shown) -> list[tuple[str, RenderableType]]:
    rows: list[tuple[str, RenderableType]] = []
    if one.place is not None:
        rows.append(("at", _where(one)))
        source = _source(one.place)
        if source:
            rows.append(("", source))
    for frame in one.chain[:_SHOWN_CALLS]:
        rows.append(("from", _frame(frame)))
    if one.library is not None:
        rows.append(("in", _frame(one.library)))
    if one.forward is not None:
        rows.append(("forward", _frame(one.forward)))
        source = _source(one.forward)
        if source:
            rows.append(("", source))
    rows.append(("why", plain(f"{one.reason}.")))
    rows += [("seen", plain(text, "dim")) for text in one.evidence]
    if one.fix:
        rows.append(("fix", plain(one.fix, GOOD)))
    return rows


def _where(one: Shown) -> Text:
    assert one.place is not None
    text = _frame(one.place)
    more = []
    if one.module is not None:
        more.append(f"module {one.module or '(root)'}")
    if one.phase:
        more.append(one.phase)
    if one.times > 1:
        more.append(f"{one.times} times")
    if more:
        text.append_text(plain(f"  ({', '.join(more)})", "dim"))
    return text


def shown_file(file: str) -> str:
    """Relative to the current folder when it lies below it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.path.normpath(file)


def _frame(frame: Frame) -> Text:
    text = plain(f"{shown_file(frame.file)}:{frame.line}", "cyan")
    text.append_text(plain(f" in {frame.function}"))
    return text


def _source(frame: Frame) -> Text | None:
    line = source_line(frame)
    if not line:
        return None
    text = plain(f"{frame.line:>5} │ ", "dim")
    text.append_text(plain(line, "bold"))
    return text
