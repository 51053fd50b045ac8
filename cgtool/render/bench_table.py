"""The screen of ``cgtool bench``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from cgtool.analysis.bench import BenchReport
from cgtool.render.findings_table import render as render_findings
from cgtool.render.table import BAD, DOUBT, GOOD, add, explained, plain, table
from cgtool.render.units import count_text, time_text


def render(report: BenchReport) -> RenderableType:
    """One row a phase, then what the times mean, then the doubts."""
    made = table(
        f"Eager against replay, {report.device}",
        ("phase", "left"),
        ("eager", "right"),
        ("replay", "right"),
        ("speed-up", "right"),
        ("host eager", "right"),
        ("host replay", "right"),
        ("pays after", "right"),
    )
    for row in report.rows:
        style = GOOD if row.speedup_low > 1 else BAD if row.speedup_high < 1 else DOUBT
        add(
            made,
            row.phase,
            _two(time_text(row.eager_ns), _spread(row.eager_spread)),
            _two(time_text(row.replay_ns), _spread(row.replay_spread)),
            _two(f"{row.speedup:.2f}x", f"{row.speedup_low:.2f}–{row.speedup_high:.2f}", style),
            time_text(row.eager_host_ns),
            time_text(row.replay_host_ns),
            "never" if row.break_even is None else f"{row.break_even:,} replays",
        )
    rounds = report.rows[0].rounds if report.rows else 0
    means = [
        (
            "eager, replay",
            f"device time of one iteration: median of {count_text(rounds, 'interleaved round')}, "
            "± half the middle half",
        ),
        ("speed-up", "eager over replay, and its 95 % interval"),
        ("host", "time to enqueue one iteration, median"),
        ("pays after", "replays that win back the time that the capture took"),
    ]
    means += [
        (row.phase, f"each iteration right behind its {row.behind}, which is not timed")
        for row in report.rows
        if row.behind is not None
    ]
    parts: list[RenderableType] = [made, explained(means)]
    if report.doubts:
        parts.append(explained((("doubt", doubt) for doubt in report.doubts), DOUBT))
    if report.findings:
        parts += ["", render_findings(report.findings)]
    return Group(*parts)


def _spread(value: float | None) -> str:
    return "±?" if value is None else f"±{value:.1%}"


def _two(first: str, second: str, style: str = "") -> Text:
    """A figure, and under it how far it can be trusted."""
    text = plain(first, style)
    text.append("\n")
    text.append_text(plain(second, "dim"))
    return text
