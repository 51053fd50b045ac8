"""The screen of ``cgtool annotate``."""

from __future__ import annotations

from collections.abc import Sequence

from cgtool.analysis.trace_match import How
from cgtool.analysis.trace_report import AnnotateReport, MatchedGraphRow, Unmatched
from cgtool.analysis.units import count_text, time_text
from cgtool.render.table import WARNING, Column, Screen

_SHOWN = 20
_NAMES = 3


def _records(heading: str, how: How, explanation: str, style: str = "") -> Column[MatchedGraphRow]:
    return Column(
        heading,
        lambda row: row.how.get(how),
        optional=True,
        style=style,
        explanation=explanation,
    )


COLUMNS: Sequence[Column[MatchedGraphRow]] = (
    Column("graph", lambda row: _names(row.graphs)),
    Column("launches"),
    Column("nodes", explanation="kernels, memcpys and memsets of a launch"),
    Column(
        "GPU time",
        lambda row: row.gpu_ns // row.launches,
        time_text,
        priority=1,
        explanation="mean per launch, the sum over its nodes; tracing makes short nodes longer",
    ),
    _records("by node id", "node id", "the trace names the node, and its kernel has the same name"),
    _records(
        "by order",
        "order",
        "only this graph has the kernels of the launch, with the same grids and blocks "
        "(except those that Inductor tunes), and its edges leave no doubt which kernel is "
        "which node",
    ),
    _records(
        "by neighbors",
        "neighbors",
        "as by order, but several graphs fit; the launches before and after show which one it is",
    ),
    _records("by name", "names", "as by order, but grids or blocks differ: other shapes", WARNING),
    _records(
        "ambiguous",
        "ambiguous",
        "one of several nodes from different places: it gets only what they share",
        WARNING,
    ),
)


def _names(names: Sequence[str]) -> str:
    """``step backward 0 or 1``: the words that all begin with come once, for narrow tables."""
    more = [f"{len(names) - _NAMES} more"] if len(names) > _NAMES else []
    first, *others = (name.rpartition(" ") for name in names[:_NAMES])
    if all(each[0] == first[0] for each in others):
        return " or ".join(["".join(first), *(each[2] for each in others), *more])
    return " or ".join([*names[:_NAMES], *more])


def _why(row: Unmatched) -> str:
    launches = count_text(row.launches, "launch", "launches")
    return f"{launches}, {count_text(row.records, 'kernel')}: {row.why}"


def render(report: AnnotateReport, *, rows: int = 20, explain: bool = False) -> Screen:
    """The sentence, a row for each graph (``rows``, 0 for all), and launches that match none."""
    screen = Screen(explain=explain)
    screen.line(report.sentence, "bold")
    outside = count_text(report.outside, "kernel")
    screen.line(f"{report.trace} with {report.capture}; {outside} outside graphs", "dim")
    if report.unusable:
        unusable = count_text(report.unusable, "kernel")
        screen.line(f"{unusable} left out: `ts` or `dur` is missing or invalid", WARNING)
    shown = report.graphs[: rows or None]
    screen.table("Graphs", COLUMNS, shown)
    if rest := len(report.graphs) - len(shown):
        screen.line(f"{count_text(rest, 'more graph')}: --format json shows all", "dim")
    if report.unmatched:
        screen.parts.append("")
        screen.labeled((("not matched", _why(row)) for row in report.unmatched[:_SHOWN]), WARNING)
        hint = "`cgtool run` of the traced program records all its graphs"
        if report.whole_program:
            hint = f"if the program has changed since {report.capture}, record it again"
        screen.line(hint, "dim")
    screen.legend()
    return screen
