"""The screen of ``cgtool bench``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from cgtool.analysis.bench import BenchReport
from cgtool.render.table import add, plain, table
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
        style = "green" if row.speedup_low > 1 else "red" if row.speedup_high < 1 else "yellow"
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
    parts: list[RenderableType] = [
        made,
        plain(
            "Device time of one iteration between CUDA events, median of "
            f"{count_text(rounds, 'interleaved round')} ± half the middle half; "
            "under the speed-up its 95 % interval; host: the time to enqueue one iteration.",
            "dim",
        ),
    ]
    for doubt in report.doubts:
        line = Text("doubt ", style="yellow")
        line.append_text(plain(doubt))
        parts.append(line)
    return Group(*parts)


def _spread(value: float | None) -> str:
    return "±?" if value is None else f"±{value:.1%}"


def _two(first: str, second: str, style: str = "") -> Text:
    """A figure, and under it how far it can be trusted."""
    text = plain(first, style)
    text.append("\n")
    text.append_text(plain(second, "dim"))
    return text
