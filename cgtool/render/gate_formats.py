"""The formats of ``cgtool gate`` for CI: GitHub Actions, JUnit XML and github-action-benchmark.

Characters that do not print are written as escapes in all of them: terminals, logs and pages act on
them, and XML 1.0 has no way to hold most of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec

from cgtool.analysis.gate.judge import ERROR, GateReport, Judged
from cgtool.analysis.gate.metrics import BY_NAME
from cgtool.analysis.gate.verdict import FAIL, PASS, UNKNOWN
from cgtool.model.capture import Frame
from cgtool.render.csv import encode_tables
from cgtool.render.gate_table import (
    WITH_REASONS,
    WORDS,
    conclusion,
    details,
    error_lines,
    explained,
    render,
    sentence,
)
from cgtool.render.text import machine_text, shown_file, visible

# --- CSV


def csv(report: GateReport) -> bytes:
    """The verdicts of all targets; of targets without a budget, their figures."""
    tables = [table for table in render(report).tables if table.rows]
    return encode_tables([table for table in tables if table.name == tables[0].name])


# --- GitHub Actions: workflow commands, which become annotations, and a job summary.
# https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands : a step
# shows at most ten annotations of a kind, and a summary of more than 1 MiB is refused.

MOST_ANNOTATIONS = 10
MOST_BYTES = 1024 << 10

_KINDS = {FAIL: "error", UNKNOWN: "warning"}
_MARKS = {PASS: "✅", FAIL: "❌", UNKNOWN: "❔", ERROR: "❌"}


def github_commands(report: GateReport, root: Path) -> str:
    """``::error`` for figures that failed or could not be measured, ``::warning`` for those that
    are undecided; nothing for the rest.

    ``root`` is the top of the checkout, which annotations name their files from.
    """
    commands: dict[str, list[str]] = {"error": [], "warning": []}
    for name, target in report.named():
        if target.error is not None:
            facts, frame = error_lines(target.error), _place(target.error.frames)
            title = f"{name} not measured"
            commands["error"].append(_command("error", title, facts, frame, root))
    for name, target in report.named():
        for verdict in target.verdicts:
            if kind := _KINDS.get(verdict.verdict):
                title = f"{name}: {verdict.metric} {WORDS[verdict.verdict]}"
                facts = (sentence(verdict), *details(verdict))
                commands[kind].append(_command(kind, title, facts, verdict.frame, root))
    for kind, lines in commands.items():
        if len(lines) > MOST_ANNOTATIONS:
            rest = f"{len(lines) - MOST_ANNOTATIONS + 1} more: see the job summary"
            lines[MOST_ANNOTATIONS - 1 :] = [_command(kind, "cgtool gate", (rest,))]
    return "".join(f"{line}\n" for lines in commands.values() for line in lines)


def _command(
    kind: str, title: str, lines: Iterable[str], frame: Frame | None = None, root: Path = Path()
) -> str:
    place = {} if frame is None else {"file": from_root(frame, root), "line": str(frame.line)}
    named = {**place, "title": title}
    # The value of a property ends at a comma or a colon too.
    values = (message((value,)).replace(":", "%3A").replace(",", "%2C") for value in named.values())
    properties = ",".join(f"{name}={value}" for name, value in zip(named, values, strict=True))
    return f"::{kind} {properties}::{message(lines)}"


def _place(frames: Sequence[Frame]) -> Frame | None:
    # A round of a recursion that was left out has no file.
    return next((frame for frame in frames if frame.file), None)


def message(lines: Iterable[str]) -> str:
    """Text of a workflow command, which ends at the end of the line. What does not print shows as
    an escape: terminals and logs act on it."""
    return "%0A".join(visible(line).replace("%", "%25") for line in lines)


def from_root(frame: Frame, root: Path) -> str:
    """The file from the top of the checkout; as it is when it lies elsewhere."""
    path = os.path.abspath(frame.file)  # noqa: PTH100 : resolve() would follow links away
    try:
        return Path(path).relative_to(root).as_posix()
    except ValueError:
        return frame.file


def github_summary(report: GateReport, most: int) -> str:
    """Markdown for ``$GITHUB_STEP_SUMMARY``, cut where GitHub would refuse it."""
    parts = [f"## cgtool gate {_MARKS[report.verdict]} {cell(conclusion(report).plain)}\n"]
    parts += [_section(name, target) for name, target in report.named()]
    return cut_lines("\n".join(parts), most)


def cut_lines(text: str, most: int) -> str:
    """At most so many bytes, whole lines, and a note where something was left out, if there is room
    for it."""
    data = text.encode(errors="replace")
    if len(data) <= most:
        return data.decode()
    note = "\n\n_Truncated: GitHub rejects longer summaries._\n"
    room = most - len(note.encode())
    return data[:room].decode(errors="ignore").rpartition("\n")[0] + note if room >= 0 else ""


def _section(name: str, target: Judged) -> str:
    if target.error is not None:
        facts = (f"- {cell(line)}" for line in error_lines(target.error))
        return "\n".join((f"### {cell(name)}", "", *facts, ""))
    device = "the simulated device" if target.simulated else target.device
    baseline = f", compared with {target.baseline}" if target.baseline else ""
    lines = [
        f"### {cell(name)}",
        "",
        cell(f"{machine_text(device, target.torch)}{baseline}"),
        "",
        f"| | {' | '.join(column.heading for column in WITH_REASONS)} |",
        f"|---|{'|'.join('---:' if column.numeric else '---' for column in WITH_REASONS)}|",
    ]
    for verdict in target.verdicts:
        cells = (column.text(column.cell(verdict)) for column in WITH_REASONS)
        row = (_MARKS[verdict.verdict], *cells)
        lines.append(f"| {' | '.join(map(cell, row))} |")
    lines.append("")
    for verdict, reasons in explained(target):
        frame = verdict.frame
        place = f" at {cell(f'{shown_file(frame.file)}:{frame.line}')}" if frame else ""
        lines.append(f"**{cell(verdict.metric)}**{place}\n")
        lines += [f"- {cell(line)}" for line in reasons]
        lines.append("")
    lines += [f"> {cell(note)}\n" for note in target.notes]
    return "\n".join(lines) + "\n"


_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>|#~$"} | {"&": "&amp;"})
_BLOCK = re.compile(r"\A(?:[-+](?= |\Z)|-(?=[- ]*\Z)|\d{1,9}[.)](?= |\Z))")
"""The beginning of a line that Markdown takes for a list or a rule."""
_LINK = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)


def cell(text: str) -> str:
    """One line of plain text in Markdown: nothing in it is read as markup, no address becomes a
    link, and what does not print shows as an escape."""
    shown = visible(text).strip(" ").translate(_MARKDOWN)
    for pattern in (_BLOCK, _LINK):
        shown = pattern.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", shown)
    return shown


# --- JUnit XML, which CI servers list as tests. The dialect is the one that Jenkins, GitLab and
# GitHub's test reporters share: testsuites, testsuite, testcase, failure, error, skipped and
# properties (the Ant/Jenkins schema, https://github.com/jenkinsci/xunit-plugin). What cannot be
# decided is skipped, with the reason.


def junit(report: GateReport) -> bytes:
    """One suite per target, one case per verdict."""
    root = ET.Element("testsuites", name="cgtool gate")
    suites = [_suite(root, name, target) for name, target in report.named()]
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _suite(root: ET.Element, entry: str, target: Judged) -> ET.Element:
    verdicts = [verdict.verdict for verdict in target.verdicts]
    suite = ET.SubElement(
        root,
        "testsuite",
        name=visible(f"cgtool gate {entry}"),
        tests=str(len(verdicts) + (target.error is not None)),
        failures=str(verdicts.count(FAIL)),
        errors=str(int(target.error is not None)),
        skipped=str(verdicts.count(UNKNOWN)),
    )
    if target.error is not None:
        # A case of its own: a suite without cases looks like a pass.
        case = _case(suite, entry, "measured", _place(target.error.frames))
        _outcome(case, "error", f"exit {target.error.exit_code}", error_lines(target.error))
        return suite
    properties = ET.SubElement(suite, "properties")
    facts = {"device": target.device, "torch": target.torch, "baseline": target.baseline or "none"}
    facts |= {name: f"{value:.10g}" for name, value in target.figures.items()}
    for name, value in facts.items():
        ET.SubElement(properties, "property", name=visible(name), value=visible(value))
    for verdict in target.verdicts:
        # A figure may have a budget and a baseline: the name says which. Without their values, CI
        # finds the case again in its history when one of them changes.
        kind, *_ = re.split(r" *[-\d]", verdict.requirement)
        name = f"{verdict.metric} ({kind})"
        case = _case(suite, entry, name, verdict.frame)
        if verdict.verdict == FAIL:
            lines = (f"{verdict.metric}: {sentence(verdict)}", *details(verdict))
            _outcome(case, "failure", "budget" if verdict.baseline is None else "regression", lines)
        elif verdict.verdict == UNKNOWN:
            message = f"cannot tell: {verdict.requirement}: {verdict.text}"
            ET.SubElement(case, "skipped", message=visible(message))
    return suite


def _case(suite: ET.Element, entry: str, name: str, frame: Frame | None) -> ET.Element:
    case = ET.SubElement(suite, "testcase", classname=visible(entry), name=visible(name))
    if frame is not None:
        case.set("file", visible(shown_file(frame.file)))
        case.set("line", str(frame.line))
    return case


def _outcome(case: ET.Element, tag: str, kind: str, lines: Sequence[str]) -> None:
    element = ET.SubElement(case, tag, message=visible(lines[0]), type=kind)
    element.text = "\n".join(map(visible, lines))


# --- github-action-benchmark, as its tool ``customSmallerIsBetter`` reads it: an array of name,
# unit, value, and optionally range and extra.
# https://github.com/benchmark-action/github-action-benchmark


def benchmark_action(report: GateReport) -> bytes:
    """Every figure of every target that is better when it is smaller, judged or not."""
    rows = [
        _row(entry, target, name)
        for entry, target in report.named()
        for name in target.figures
        if _is_charted(target, name)
    ]
    return msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n"


def _is_charted(target: Judged, name: str) -> bool:
    metric = BY_NAME[name.partition(".")[0]]
    # A time of the phase that is the whole: one chart of it is enough.
    repeated = name != metric.name and target.figures[name] == target.figures.get(metric.name)
    return not (metric.larger_is_better or (repeated and not metric.exact))


def _row(entry: str, target: Judged, name: str) -> dict[str, Any]:
    judged = [verdict for verdict in target.verdicts if verdict.metric == name]
    lines = [f"{verdict.requirement}: {verdict.verdict}" for verdict in judged]
    spread = target.spreads.get(name)
    return {
        "name": visible(f"{entry} {name}"),
        "unit": BY_NAME[name.partition(".")[0]].unit or "count",
        "value": target.figures[name],
        **({} if spread is None else {"range": f"± {spread:.3g}"}),
        "extra": "\n".join(map(visible, (machine_text(target.device, target.torch), *lines))),
    }
