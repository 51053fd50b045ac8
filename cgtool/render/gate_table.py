"""The screen of ``cgtool gate``, and the sentences that its other formats share."""

from __future__ import annotations

import itertools
from dataclasses import replace

from rich.text import Text

from cgtool.analysis.gate.judge import ERROR, GateReport, Judged
from cgtool.analysis.gate.metrics import metric_of
from cgtool.analysis.gate.verdict import FAIL, PASS, UNKNOWN, Verdict, number
from cgtool.analysis.units import count_text
from cgtool.model.failure import Failure
from cgtool.render.table import BAD, GOOD, WARNING, Column, Hanging, Screen, plain
from cgtool.render.text import shown_file

_FRAMES = 6
"""How many of the innermost frames of an error are shown."""
WORDS = {PASS: "pass", FAIL: "fail", UNKNOWN: "cannot tell"}
_STYLE = {PASS: GOOD, FAIL: BAD, UNKNOWN: WARNING, ERROR: BAD}


def measured_text(verdict: Verdict) -> str:
    """``25``, ``33.0 us``; — if nothing was measured."""
    return _quantity_text((verdict.measured, verdict.unit))


_Quantity = tuple[float | None, str]
"""A figure and its unit."""


def _quantity_text(quantity: _Quantity) -> str:
    return "—" if quantity[0] is None else number(quantity[0], quantity[1])


VERDICTS: tuple[Column[Verdict], ...] = (
    Column("metric", wrap="never"),
    Column(
        "measured",
        lambda verdict: (verdict.measured, verdict.unit),
        _quantity_text,
        wrap="never",
        numeric=True,
        parts=("", "unit"),
        explanation="a count, or for a time the median of its runs",
    ),
    Column(
        "limit",
        "requirement",
        wrap="never",
        explanation="a budget, or the baseline plus what is allowed above it",
    ),
    Column(
        "verdict",
        lambda verdict: WORDS[verdict.verdict],
        wrap="never",
        style=lambda verdict: _STYLE[verdict.verdict],
        explanation="cannot tell: not measured, not comparable, or too close to the limit",
    ),
    Column("", lambda verdict: "" if verdict.verdict == UNKNOWN else verdict.text),
)
WITH_REASONS = (*VERDICTS[:-1], Column[Verdict]("", lambda verdict: verdict.text, name="why"))


FIGURES: tuple[Column[tuple[str, float]], ...] = (
    Column("metric", lambda figure: figure[0], wrap="never"),
    Column(
        "measured",
        lambda figure: (figure[1], metric.unit if (metric := metric_of(figure[0])) else ""),
        _quantity_text,
        wrap="never",
        numeric=True,
        parts=("", "unit"),
    ),
)
"""Shown for a target without budgets and baseline."""


def render(report: GateReport, *, explain: bool = False) -> Screen:
    """One table per target, the evidence of every verdict that is not a pass, and one word; with
    ``explain`` also what the headings mean."""
    screen = Screen()
    for name, target in report.named():
        screen.include(_target(name, target, explain=explain))
        screen.parts.append("")
    screen.parts.append(conclusion(report))
    return screen


def _target(name: str, target: Judged, *, explain: bool) -> Screen:
    screen = Screen(simulated=target.simulated, explain=explain)
    if target.error is not None:
        # Standard error has all of it.
        screen.line(f"{name} was not measured: {target.error.message}", f"bold {BAD}")
        return screen
    device = "" if target.simulated else f", {target.device}"
    part = ("target", name)
    title = f"Gate of {name}{device}"
    screen.table(title, VERDICTS, target.verdicts, name="verdicts", part=part)
    # The reason for "cannot tell" needs the whole width, so on the screen it is below.
    screen.tables[-1] = replace(screen.tables[-1], columns=WITH_REASONS)
    title, figures = f"Figures of {name}{device}", tuple(target.figures.items())
    screen.table(title, FIGURES, () if target.verdicts else figures, name="figures", part=part)
    screen.legend()
    reasons = explained(target, reasons=True)
    if reasons or target.notes:
        screen.parts.append("")
    for verdict, lines in reasons:
        screen.line(verdict.metric, f"bold {_STYLE[verdict.verdict]}")
        screen.parts += [Hanging(plain("  "), plain(line)) for line in lines]
    for note in target.notes:
        screen.line(f"note: {note}", "dim")
    return screen


def sentence(verdict: Verdict) -> str:
    """``25, at most 20: 5 over``."""
    text = f": {verdict.text}" if verdict.text else ""
    return f"{measured_text(verdict)}, {verdict.requirement}{text}"


def explained(target: Judged, *, reasons: bool = False) -> list[tuple[Verdict, tuple[str, ...]]]:
    """The evidence for every verdict that is not a pass, the same line of one figure once; with
    ``reasons``, also why something is undecided."""
    groups: list[tuple[Verdict, tuple[str, ...]]] = []
    shown: set[tuple[str, str]] = set()
    for verdict in target.verdicts:
        reason = (verdict.text,) if reasons and verdict.verdict == UNKNOWN else ()
        lines = tuple(
            line for line in (*reason, *details(verdict)) if (verdict.metric, line) not in shown
        )
        shown |= {(verdict.metric, line) for line in lines}
        if lines and verdict.verdict != PASS:
            groups.append((verdict, lines))
    return groups


def details(verdict: Verdict) -> tuple[str, ...]:
    """The evidence, and where the budget was written if not on the command line."""
    if verdict.source == "default" or verdict.source.startswith("--"):
        return verdict.evidence
    return (*verdict.evidence, f"limit from {verdict.source}")


def conclusion(report: GateReport) -> Text:
    """``passed: 12 figures``; ``failed: 2 of 12 figures, 1 undecided``."""
    verdicts = [verdict.verdict for target in report.targets for verdict in target.verdicts]
    failed, unknown = verdicts.count(FAIL), verdicts.count(UNKNOWN)
    count = count_text(len(verdicts), "figure")
    if failed:
        text = f"failed: {failed} of {count}{f', {unknown} undecided' if unknown else ''}"
    elif unknown:
        text = f"cannot tell: {unknown} of {count}"
    elif verdicts:
        text = f"passed: {count}"
    else:
        text = "measured; there is no budget or baseline to compare with"
    targets = len(report.targets)
    if errors := sum(target.error is not None for target in report.targets):
        rest = f", {text}" if errors < targets else ""
        text = f"not measured: {errors} of {targets} targets{rest}"
    return plain(text, f"bold {_STYLE[report.verdict]}")


def error_lines(error: Failure) -> tuple[str, ...]:
    """An error as lines: what, where, why, how to fix it, and the codes of its causes."""
    # A round of a recursion that was left out has no file.
    frames = (
        f"at {shown_file(frame.file)}:{frame.line} in {frame.function}"
        if frame.file
        else frame.function
        for frame in error.frames
    )
    facts = (("why", error.why or ""), ("fix", error.fix or ""))
    codes = dict.fromkeys(finding.code for finding in error.findings)
    return (
        error.message,
        *itertools.islice(frames, _FRAMES),
        *(f"{word}: {line}" for word, text in facts for line in text.splitlines()),
        *(f"code: {code} (cgtool explain {code})" for code in codes),
    )
