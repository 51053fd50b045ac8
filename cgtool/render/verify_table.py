"""The screen of ``cgtool verify``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from cgtool.analysis.verify import Row, exit_code, rows
from cgtool.model.failure import EXIT_FOUND, EXIT_UNKNOWN
from cgtool.model.finding import Report
from cgtool.render.findings import render as render_findings
from cgtool.render.table import BAD, GOOD, WARNING, add, plain, table


def render(report: Report) -> RenderableType:
    """One row a trial and kind, the findings, and the verdict."""
    made = table(
        f"Replay against eager, {report.entry.spec}",
        "tensor",
        "trial",
        ("largest difference", "right"),
        ("eager noise", "right"),
        ("verdict", "left"),
        simulated=report.environment.simulated,
    )
    for row in rows(report.comparisons):
        add(
            made,
            row.name,
            row.trial,
            _difference(row),
            _number(row.noise),
            _verdict(row),
        )
    parts: list[RenderableType] = [made, ""]
    if report.findings:
        parts += [render_findings(report.findings), ""]
    parts.append(_word(report))
    if report.looked_at:
        parts.append(plain("looked at: " + "; ".join(report.looked_at), "dim"))
    parts += [plain(f"note: {note.text}", "dim") for note in report.notes]
    return Group(*parts)


def _number(value: float | None) -> str:
    if value is None:
        return "not a number"
    return "0" if value == 0 else f"{value:.3g}"


def _difference(row: Row) -> str:
    text = _number(row.largest)
    if not row.equal and row.relative:
        text += f" ({row.relative:.2%})" if row.relative < 10 else f" ({row.relative:.3g} x)"
    return text


def _verdict(row: Row) -> Text:
    if row.exact:
        return plain("equal to the last bit", GOOD)
    if row.equal:
        return plain(f"equal within {_number(row.tolerance)}", GOOD)
    return plain("differs", BAD)


def _word(report: Report) -> Text:
    code = exit_code(report)
    if code == EXIT_FOUND:
        apart = sum(not one.equal for one in report.comparisons)
        if apart:
            return plain(
                f"not verified: {apart:,} of {len(report.comparisons):,} comparisons differ",
                f"bold {BAD}",
            )
        return plain("not verified", f"bold {BAD}")
    if code == EXIT_UNKNOWN:
        return plain("cannot tell: eager differs too much from itself", f"bold {WARNING}")
    return plain(
        f"verified: {len(report.comparisons):,} comparisons, replay equals eager", f"bold {GOOD}"
    )
