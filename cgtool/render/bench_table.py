"""The screen of ``cgtool bench``."""

from __future__ import annotations

from collections.abc import Sequence

from cgtool.analysis.timing.bench import BenchReport, BenchRow, PhaseVerdict
from cgtool.analysis.timing.regression import CANNOT_TELL, NOT_SLOWER, SLOWER, percent
from cgtool.analysis.units import count_text
from cgtool.render.report_table import Findings
from cgtool.render.table import BAD, GOOD, WARNING, Column, Screen

_VERDICTS = {
    SLOWER: ("slower", BAD),
    NOT_SLOWER: ("not slower", GOOD),
    CANNOT_TELL: ("cannot tell", WARNING),
}


def render(report: BenchReport, *, explain: bool = False) -> Screen:
    """Eager and replay, the verdicts on replays, warnings, findings; with ``explain`` also what the
    headings mean."""
    screen = Screen(explain=explain)
    screen.table(f"Eager and replay, {report.device}", ROWS, report.rows, name="times")
    title = f"Replay times compared with {report.against}"
    screen.table(title, VERDICTS, report.verdicts, name="verdicts")
    screen.labeled(_evidence(report.verdicts))
    screen.labeled(("note", note) for note in report.notes)
    screen.labeled((("warning", text) for text in report.warnings), WARNING)
    screen.legend(_legend(report) if report.rows else ())
    screen.add(Findings(report.findings))
    return screen


def _spread_text(spread: float | None) -> str:
    return "±?" if spread is None else f"±{spread:.1%}"


ROWS: Sequence[Column[BenchRow]] = (
    Column("phase", wrap="never"),
    Column(
        "speedup",
        "speedup",
        lambda ratio: f"{ratio:.2f}x",
        style=lambda row: GOOD if row.speedup_low > 1 else BAD if row.speedup_high < 1 else WARNING,
        explanation="eager time over replay time",
    ),
    Column(
        "95% CI",
        lambda row: (row.speedup_low, row.speedup_high),
        lambda ends: f"{ends[0]:.2f}x to {ends[1]:.2f}x",
        parts=("low", "high"),
        explanation="95% confidence interval of the speedup",
    ),
    Column("eager", "eager_ns"),
    Column("replay", "replay_ns"),
    Column(
        "break-even",
        "break_even",
        lambda replays: "never" if replays is None else count_text(replays, "replay"),
        explanation="replays after which the capture has paid for itself",
    ),
    Column(
        "eager ±",
        "eager_spread",
        _spread_text,
        priority=1,
        explanation="spread of the rounds: half the width of their middle half",
    ),
    Column("replay ±", "replay_spread", _spread_text, priority=3),
    Column(
        "eager host",
        "eager_host_ns",
        priority=2,
        explanation="host time to launch one iteration, median",
    ),
    Column("replay host", "replay_host_ns", priority=2),
)


def _legend(report: BenchReport) -> list[tuple[str, str]]:
    rounds = count_text(report.rows[0].rounds, "interleaved round")
    runs = f" of {report.runs} processes" if report.runs > 1 else ""
    lines = [("eager, replay", f"GPU time of one iteration, median of {rounds}{runs}")]
    lines += [
        (row.phase, f"timed right after its {row.behind}, which is not included")
        for row in report.rows
        if row.behind is not None
    ]
    return lines


VERDICTS: Sequence[Column[PhaseVerdict]] = (
    Column("phase", wrap="never"),
    Column(
        "verdict",
        lambda row: _VERDICTS[row.verdict][0],
        wrap="never",
        style=lambda row: _VERDICTS[row.verdict][1],
    ),
    Column(
        "change",
        lambda row: row.answer and row.answer.ratio,
        lambda ratio: "—" if ratio is None else percent(ratio),
    ),
    Column(
        "interval",
        lambda row: row.answer and (row.answer.low, row.answer.high),
        lambda ends: "—" if ends is None else f"{percent(ends[0])} to {percent(ends[1])}",
        parts=("low", "high"),
        explanation="the change is below it at most 1 time in 200, and above it at most 1 in 20",
    ),
    Column(
        "allowed",
        lambda row: row.answer and 1 + row.answer.tolerance,
        lambda ratio: "—" if ratio is None else percent(ratio),
    ),
    Column("baseline", "base_ns"),
    Column("here", "head_ns"),
)


def _evidence(verdicts: Sequence[PhaseVerdict]) -> list[tuple[str, str]]:
    """Evidence for the verdicts, and the remedy for those that could not be given."""
    answers = [(verdict.phase, verdict.answer) for verdict in verdicts if verdict.answer]
    reasons = [("not compared", reason) for verdict in verdicts for reason in verdict.reasons]
    counts = [("measured by", answer.counted) for _, answer in answers]
    remedies = [(phase, answer.remedy) for phase, answer in answers if answer.remedy]
    return [*dict.fromkeys(reasons), *dict.fromkeys(counts), *remedies]
