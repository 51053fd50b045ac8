"""The screen of ``cgtool verify``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from cgtool.analysis.verify import Row, exit_code, rows
from cgtool.model.failure import EXIT_FOUND, EXIT_UNKNOWN
from cgtool.model.finding import Report
from cgtool.render.findings import render as render_findings
from cgtool.render.table import BAD, GOOD, WARNING, Column, Table, legend, plain


def render(report: Report, *, explain: bool = False) -> RenderableType:
    """One row a tensor and trial, the findings, and the verdict; with ``explain`` also what the
    headings mean."""
    table = Table(
        f"Replay compared with eager, {report.entry.spec}",
        ROWS,
        rows(report.comparisons),
        simulated=report.environment.simulated,
    )
    parts: list[RenderableType] = [table, *legend([table], explain=explain), ""]
    if report.findings:
        parts += [render_findings(report.findings), ""]
    parts.append(_conclusion(report))
    if report.looked_at:
        parts.append(plain("checked: " + "; ".join(report.looked_at), "dim"))
    parts += [plain(f"note: {note.text}", "dim") for note in report.notes]
    return Group(*parts)


def _number_text(value: float | None) -> str:
    if value is None:
        return "not a number"
    return "0" if value == 0 else f"{value:.3g}"


def _relative_text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2%}" if value < 10 else f"{value:.3g}x"


def _verdict(row: Row) -> str:
    return "bit-identical" if row.exact else "equal" if row.equal else "differs"


ROWS: Sequence[Column[Row]] = (
    Column("tensor", lambda row: row.name),
    Column("trial", lambda row: row.trial),
    Column("verdict", _verdict, wrap="never", style=lambda row: GOOD if row.equal else BAD),
    Column(
        "difference",
        lambda row: row.largest,
        _number_text,
        explanation="largest absolute difference between replay and eager",
    ),
    Column(
        "relative",
        lambda row: row.relative if not row.equal and row.relative else None,
        _relative_text,
        optional=True,
    ),
    Column(
        "eager noise",
        lambda row: row.noise,
        _number_text,
        explanation="largest absolute difference between two eager runs",
    ),
    Column(
        "tolerance",
        lambda row: row.tolerance,
        _number_text,
        priority=1,
        explanation="largest absolute difference that counts as equal",
    ),
)


def _conclusion(report: Report) -> Text:
    code, count = exit_code(report), len(report.comparisons)
    if code == EXIT_FOUND:
        different = sum(not comparison.equal for comparison in report.comparisons)
        text = "not verified"
        if different:
            text += f": {different:,} of {count:,} comparisons differ"
        return plain(text, f"bold {BAD}")
    if code == EXIT_UNKNOWN:
        text = "cannot tell: two eager runs differ too much from each other"
        return plain(text, f"bold {WARNING}")
    return plain(f"verified: {count:,} comparisons, replay equals eager", f"bold {GOOD}")
