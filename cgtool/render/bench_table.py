"""The screen of ``cgtool bench``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from cgtool.analysis.timing.bench import BenchReport
from cgtool.analysis.timing.regression import CANNOT_TELL, NOT_SLOWER, SLOWER, percent
from cgtool.analysis.units import count_text, time_text
from cgtool.render.findings import render as render_findings
from cgtool.render.table import BAD, GOOD, WARNING, add, explained, plain, table

_VERDICTS = {
    SLOWER: ("slower", BAD),
    NOT_SLOWER: ("not slower", GOOD),
    CANNOT_TELL: ("cannot tell", WARNING),
}


def render(report: BenchReport) -> RenderableType:
    """Eager against replay, replays against what they are held to, then the doubts."""
    parts: list[RenderableType] = []
    if report.rows:
        parts += _eager_against_replay(report)
    if report.verdicts:
        parts += [*([""] if parts else []), *_held(report)]
    elif report.notes:
        parts.append(explained(("note", note) for note in report.notes))
    if report.doubts:
        parts.append(explained((("doubt", doubt) for doubt in report.doubts), WARNING))
    if report.findings:
        parts += ["", render_findings(report.findings)]
    return Group(*parts)


def _eager_against_replay(report: BenchReport) -> list[RenderableType]:
    """One row a phase, then what the times mean."""
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
        style = GOOD if row.speedup_low > 1 else BAD if row.speedup_high < 1 else WARNING
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
    rounds = count_text(report.rows[0].rounds, "interleaved round")
    runs = f" of {report.runs} processes" if report.runs > 1 else ""
    means = [
        (
            "eager, replay",
            f"device time of one iteration: median of {rounds}{runs}, ± half the middle half",
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
    return [made, explained(means)]


def _held(report: BenchReport) -> list[RenderableType]:
    """One verdict a phase, and the evidence of each."""
    made = table(
        f"Replays against {report.against}",
        ("phase", "left"),
        ("there", "right"),
        ("here", "right"),
        ("change", "right"),
        ("between", "right"),
        ("allowed", "right"),
        ("verdict", "left"),
    )
    for one in report.verdicts:
        word, style = _VERDICTS[one.verdict]
        answer = one.answer
        add(
            made,
            one.phase,
            time_text(one.base_ns),
            time_text(one.head_ns),
            "—" if answer is None else percent(answer.ratio),
            "—"
            if answer is None
            else f"{percent(answer.low).removesuffix(' %')} to {percent(answer.high)}",
            "—" if answer is None else percent(1 + answer.tolerance),
            plain(word, style),
        )
    reasons = [reason for one in report.verdicts for reason in one.reasons]
    lines = [("not compared", reason) for reason in dict.fromkeys(reasons)]
    answers = [(one.phase, one.answer) for one in report.verdicts if one.answer is not None]
    lines += [("told by", one) for one in dict.fromkeys(answer.counted for _, answer in answers)]
    lines += [(phase, answer.remedy) for phase, answer in answers if answer.remedy]
    lines += [("note", note) for note in report.notes]
    return [made, explained(lines)] if lines else [made]


def _spread(value: float | None) -> str:
    return "±?" if value is None else f"±{value:.1%}"


def _two(first: str, second: str, style: str = "") -> Text:
    """A figure, and under it how far it can be trusted."""
    text = plain(first, style)
    text.append("\n")
    text.append_text(plain(second, "dim"))
    return text
