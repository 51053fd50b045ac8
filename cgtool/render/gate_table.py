"""The screen of ``cgtool gate``."""

from __future__ import annotations

import itertools

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from cgtool.analysis.gate.metrics import BY_NAME
from cgtool.analysis.gate.report import (
    ERROR,
    FAIL,
    PASS,
    UNKNOWN,
    GateReport,
    Judged,
    Verdict,
    number,
)
from cgtool.model.failure import Failure
from cgtool.render.source import shown_file
from cgtool.render.table import BAD, GOOD, WARNING, Fitted, add, plain, table

_FRAMES = 6
"""Of an error, the innermost."""
WORDS = {PASS: "pass", FAIL: "fail", UNKNOWN: "cannot tell"}
_STYLE = {PASS: GOOD, FAIL: BAD, UNKNOWN: WARNING, ERROR: BAD}


def render(report: GateReport) -> RenderableType:
    """One table a target, what is behind every verdict that is not a pass, and one word."""
    parts: list[RenderableType] = []
    for name, one in zip(report.names(), report.targets, strict=True):
        parts.append(_target(name, one) if one.error is None else _not_measured(name, one.error))
    return Group(*parts, conclusion(report))


def _not_measured(name: str, error: Failure) -> RenderableType:
    """One line: standard error says all of it."""
    return Group(plain(f"{name} was not measured: {error.what}", f"bold {BAD}"), "")


def _target(name: str, one: Judged) -> RenderableType:
    device = "" if one.simulated else f", {one.device}"
    made = table(
        f"Gate of {name}{device}",
        ("metric", "left"),
        ("measured", "right"),
        ("held to", "left"),
        ("verdict", "left"),
        "",
        simulated=one.simulated,
    )
    for verdict in one.verdicts:
        add(
            made,
            verdict.metric,
            measured_text(verdict),
            verdict.held_to,
            plain(WORDS[verdict.verdict], _STYLE[verdict.verdict]),
            # A reason needs the whole width.
            "" if verdict.verdict == UNKNOWN else verdict.text,
        )
    if not one.verdicts:
        made = _measured(name, one)
    parts: list[RenderableType] = [made, ""]
    for verdict, lines in explained(one, reasons=True):
        parts.append(plain(verdict.metric, f"bold {_STYLE[verdict.verdict]}"))
        parts += [Padding(plain(line), (0, 0, 0, 2), expand=False) for line in lines]
    parts += [plain(f"note: {note}", "dim") for note in one.notes]
    if parts[-1] != "":
        parts.append("")
    return Group(*parts)


def _measured(name: str, one: Judged) -> Fitted:
    """Of what is held to nothing, the figures."""
    device = "" if one.simulated else f", {one.device}"
    made = table(
        f"Figures of {name}{device}",
        ("metric", "left"),
        ("measured", "right"),
        simulated=one.simulated,
    )
    for metric, value in one.figures.items():
        add(made, metric, number(value, BY_NAME[metric.partition(".")[0]].unit))
    return made


def measured_text(verdict: Verdict) -> str:
    """``25``, ``33.0 us``; — where nothing was measured."""
    return "—" if verdict.measured is None else number(verdict.measured, verdict.unit)


def sentence(verdict: Verdict) -> str:
    """``25, at most 20: 5 over``."""
    text = f": {verdict.text}" if verdict.text else ""
    return f"{measured_text(verdict)}, {verdict.held_to}{text}"


def explained(target: Judged, *, reasons: bool = False) -> list[tuple[Verdict, tuple[str, ...]]]:
    """What is behind every verdict that is no pass, the same line of one figure once; with
    ``reasons``, also why something cannot be told."""
    found: list[tuple[Verdict, tuple[str, ...]]] = []
    seen = set()
    for one in target.verdicts:
        why = (one.text,) if reasons and one.verdict == UNKNOWN else ()
        lines = tuple(line for line in (*why, *details(one)) if (one.metric, line) not in seen)
        seen |= {(one.metric, line) for line in lines}
        if lines and one.verdict != PASS:
            found.append((one, lines))
    return found


def details(verdict: Verdict) -> tuple[str, ...]:
    """The evidence, and where the budget stands if not on the command line."""
    told = verdict.source == "default" or verdict.source.startswith("--")
    return verdict.evidence if told else (*verdict.evidence, f"held to it by {verdict.source}")


def conclusion(report: GateReport) -> Text:
    """``passed: 12 figures``; ``failed: 2 of 12 figures, 1 cannot be told``."""
    verdicts = [one.verdict for target in report.targets for one in target.verdicts]
    failed, unknown = verdicts.count(FAIL), verdicts.count(UNKNOWN)
    count = f"{len(verdicts)} figure{'' if len(verdicts) == 1 else 's'}"
    if failed:
        text = f"failed: {failed} of {count}"
        text += f", {unknown} cannot be told" if unknown else ""
    elif unknown:
        text = f"cannot tell: {unknown} of {count}"
    elif verdicts:
        text = f"passed: {count}"
    else:
        text = "measured, and held to nothing"
    errors = [one for one in report.targets if one.error is not None]
    if errors:
        told = f", {text}" if len(errors) < len(report.targets) else ""
        text = f"not measured: {len(errors)} of {len(report.targets)} targets{told}"
    return plain(text, f"bold {_STYLE[report.verdict]}")


def error_lines(error: Failure) -> tuple[str, ...]:
    """Where it was, why, what to do, and the codes of its causes, a line each."""
    # A round of a recursion that was left out has no file.
    frames = (
        f"at {shown_file(one.file)}:{one.line} in {one.function}" if one.file else one.function
        for one in error.frames
    )
    told = ((word, text) for word, text in (("why", error.why), ("fix", error.fix)) if text)
    codes = dict.fromkeys(one.code for one in error.findings)
    return (
        *itertools.islice(frames, _FRAMES),
        *(f"{word}: {line}" for word, text in told for line in text.splitlines()),
        *(f"code: {code} (cgtool explain {code})" for code in codes),
    )


def place_text(verdict: Verdict) -> str:
    """``model.py:12``, as the user would name it; empty where no line is to blame."""
    frame = verdict.frame
    return "" if frame is None else f"{shown_file(frame.file)}:{frame.line}"
