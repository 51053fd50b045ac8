"""Findings and the pages of their codes as text, in the shape of rustc and ruff::

error[sync-item]: tensor value read on the host
  --> model.py:14 in fn (forward)
   |
14 |     scale = x.max().item()
   |             ^^^^^^^^^^^^^^
   = why: reading a tensor value on the host is not permitted during capture
   = fix: keep the value on the device and read it after the replay
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import rich.table
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from cgtool.analysis.findings import ExplainedFinding, explain_findings
from cgtool.findings.registry import Page
from cgtool.model.capture import Frame
from cgtool.model.finding import ERROR, NOTE, SEVERITIES, Finding, Report
from cgtool.render.source import shown_file, source_line, underlined
from cgtool.render.table import BAD, GOOD, WARNING, Column, Table, plain

_STYLE = {ERROR: BAD, "warning": WARNING, NOTE: "cyan"}
_SHOWN_CALLS = 3


def render(findings: Sequence[Finding]) -> RenderableType:
    """One block a finding, the worst first."""
    return Group(*_separated(explain_findings(findings))[:-1])


def render_report(report: Report) -> RenderableType:
    """The screen of ``cgtool check``."""
    findings = explain_findings(report.findings)
    head = plain(report.entry.spec, "bold")
    head.append_text(
        plain("  on the simulated device", WARNING)
        if report.environment.simulated
        else plain(f"  on {report.environment.device}")
    )
    parts: list[RenderableType] = [head, "", *_separated(findings), _verdict(findings)]
    if report.looked_at:
        parts.append(plain("checked: " + "; ".join(report.looked_at), "dim"))
    parts += [plain(f"note: {note.text}", "dim") for note in report.notes]
    return Group(*parts)


def _separated(findings: Sequence[ExplainedFinding]) -> list[RenderableType]:
    return [part for finding in findings for part in (_block(finding), "")]


def _verdict(findings: Sequence[ExplainedFinding]) -> Text:
    if not findings:
        return plain("no findings", GOOD)
    count = Counter(finding.severity for finding in findings)
    parts = [
        f"{count[severity]} {severity}{'s' if count[severity] > 1 else ''}"
        for severity in SEVERITIES
        if count[severity]
    ]
    worst = next(severity for severity in SEVERITIES if count[severity])
    return plain(", ".join(parts), f"bold {_STYLE[worst]}")


def _block(finding: ExplainedFinding) -> RenderableType:
    head = plain(finding.severity, f"bold {_STYLE[finding.severity]}")
    head.append_text(plain(f"[{finding.code}]: {finding.title}", "bold"))
    parts: list[RenderableType] = [head]
    gutter = 2
    if finding.place is not None:
        gutter = max(gutter, len(str(finding.place.line)))
        parts.append(_hanging(f"{'':>{gutter}}--> ", _place(finding)))
        parts += _source(finding.place, finding.columns, gutter)
    notes = [("called from", _frame(frame), "") for frame in finding.chain[:_SHOWN_CALLS]]
    if finding.library is not None:
        notes.append(("in library", _frame(finding.library), ""))
    if finding.forward is not None:
        source = source_line(finding.forward)
        line = f"{_frame(finding.forward)}{': ' if source else ''}{source}"
        notes.append(("backward of", line, ""))
    notes.append(("why", finding.reason, ""))
    notes += [("note", text, "dim") for text in finding.evidence]
    if finding.fix:
        notes.append(("fix", finding.fix, GOOD))
    parts += [
        _hanging(f"{'':>{gutter}} = {name}: ", plain(text, style)) for name, text, style in notes
    ]
    return Group(*parts)


def _hanging(lead: str, text: Text) -> RenderableType:
    """The lead, and the text beside it in as many lines as it needs."""
    row = rich.table.Table.grid()
    row.add_column(no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(plain(lead, "dim"), text)
    return row


def _place(finding: ExplainedFinding) -> Text:
    assert finding.place is not None
    details = []
    if finding.phase:
        details.append(finding.phase.removeprefix("capture "))
    if finding.module is not None:
        details.append(f"module {finding.module or '(root)'}")
    if finding.times > 1:
        details.append(f"{finding.times} times")
    text = plain(_frame(finding.place), "cyan")
    if details:
        text.append_text(plain(f" ({', '.join(details)})", "dim"))
    return text


def _frame(frame: Frame) -> str:
    return f"{shown_file(frame.file)}:{frame.line} in {frame.function}"


def _source(frame: Frame, columns: tuple[int, int] | None, gutter: int) -> list[RenderableType]:
    """The source line with carets below the expression; nothing where there is no such file."""
    line = source_line(frame)
    if not line:
        return []
    bar = plain(f"{'':>{gutter}} |", "dim")
    rows: list[RenderableType] = [bar, _hanging(f"{frame.line:>{gutter}} |     ", plain(line))]
    span = underlined(frame, columns) if columns is not None else None
    if span is not None and line.isprintable():
        first, characters = span
        carets = bar.copy().append(" " * (5 + cell_len(line[:first])))
        carets.append("^" * cell_len(line[first : first + characters]), BAD)
        carets.no_wrap, carets.overflow = True, "crop"
        rows.append(carets)
    return rows


def render_page(page: Page) -> RenderableType:
    """The screen of ``cgtool explain CODE``: head, text and examples."""
    head = plain(page.head.severity, f"bold {_STYLE.get(page.head.severity, '')}")
    head.append_text(plain(f"[{page.code}]: {page.head.title}", "bold"))
    return Group(
        head,
        plain(f"category: {page.head.category}; goes wrong at: {page.head.phase}", "dim"),
        plain(f"fix: {page.head.fix}"),
        plain(_found_by("a GPU", page.head.gpu), "dim"),
        plain(_found_by("the simulated device", page.head.simulated), "dim"),
        "",
        Markdown(page.text, code_theme="ansi_dark"),
    )


def _found_by(device: str, command: str) -> str:
    if command.startswith("no:"):
        return f"not found on {device}: {command.removeprefix('no:').strip()}"
    return f"found on {device} by: cgtool {command}"


PAGES: Sequence[Column[Page]] = (
    Column("code", lambda page: page.code, wrap="never"),
    Column("what is wrong", lambda page: page.head.title),
)


def render_pages(pages: Sequence[Page]) -> RenderableType:
    """The screen of ``cgtool explain``: all codes, by category."""
    parts: list[RenderableType] = []
    ordered = sorted(pages, key=lambda page: (page.head.category, page.code))
    for category, members in groupby(ordered, key=lambda page: page.head.category):
        parts += [Table(category, PAGES, list(members)), ""]
    return Group(*parts[:-1])
