"""The screen of ``cgtool run --ranks``."""

from __future__ import annotations

from collections.abc import Sequence

from cgtool.analysis.ranks.rank import ranks_text
from cgtool.analysis.ranks.report import RankGraphRow, RankRow, RanksReport
from cgtool.analysis.units import count_text
from cgtool.render.table import BAD, WARNING, Column, Screen


def _counts(heading: str, field: str, explanation: str, priority: int = 0) -> Column[RankGraphRow]:
    return Column(
        heading,
        field,
        lambda counts: " to ".join(f"{count:,}" for count in counts),
        parts=("min", "max"),
        numeric=True,
        priority=priority,
        explanation=explanation,
    )


RANKS: Sequence[Column[RankRow]] = (
    Column("rank"),
    Column("pid", priority=3),
    Column("graphs"),
    Column("replays"),
    Column("last capture", "last_capture", wrap="cut", priority=2),
    Column(
        "last replay",
        lambda row: f"{row.last_replay} *" if row.in_replay else row.last_replay,
        wrap="cut",
        priority=1,
        explanation="the line that captured the graph; *: it has begun, and did not return",
    ),
    Column("end", wrap="cut"),
)
GRAPHS: Sequence[Column[RankGraphRow]] = (
    Column("line", wrap="cut"),
    Column("ranks", lambda row: ranks_text(row.ranks).partition(" ")[2]),
    _counts("nodes", "nodes", "fewest and most of a rank", 1),
    _counts("collectives", "collectives", "fewest and most of a rank"),
    _counts("replays", "replays", "fewest and most of a rank"),
    Column(
        "slowest",
        optional=True,
        explanation="the rank whose replays take longest: GPU time with --times, else host time",
    ),
    Column(
        "takes", "slowest_ns", optional=True, priority=1, explanation="a replay of the slowest rank"
    ),
    Column(
        "median", "median_ns", optional=True, priority=1, explanation="a replay of the median rank"
    ),
)


_DEEPEST = 12
"""Frames of a stack that are shown."""


def render(report: RanksReport, *, rows: int = 0, explain: bool = False) -> Screen:
    """The first difference, what each rank did, and their graphs. ``rows``: at most so many rows,
    0 for all."""
    screen, most = Screen(simulated=report.simulated, explain=explain), rows or None
    for sentence in filter(None, (report.hang, report.sentence)):
        screen.line(sentence, "bold")
    screen.line(f"{report.command}: {count_text(report.world_size, 'rank')}", "dim")
    for number, difference in enumerate(report.differences[:most]):
        screen.parts.append("")
        # The sentence of the first is above.
        head = [("differs", difference.sentence)] if number else []
        screen.labeled((*head, ("group", difference.group)), BAD)
        screen.labeled((("ranks", text) for text in difference.each), "")
    for stack in report.stacks:
        screen.parts.append("")
        screen.line(f"{stack.processes}, {stack.thread or 'a thread'}:")
        for frame in stack.frames[:_DEEPEST]:
            screen.line(f"  {frame.file}:{frame.line} in {frame.function}", "dim")
        if (more := len(stack.frames) - _DEEPEST) > 0:
            screen.line(f"  {more:,} more", "dim")
    screen.table("Ranks", RANKS, report.ranks[:most])
    screen.table("Graphs", GRAPHS, report.graphs[:most])
    if more := len(report.graphs) - len(report.graphs[:most]):
        screen.line(f"{count_text(more, 'more graph')}: --rows 0 shows all", "dim")
    if report.notes:
        screen.parts.append("")
    screen.labeled((("note", note) for note in report.notes), WARNING)
    screen.legend()
    return screen
