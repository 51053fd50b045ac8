"""The formats of ``cgtool gate`` for CI: GitHub Actions, JUnit XML and github-action-benchmark.

Characters that do not print are written as escapes in all of them: terminals, logs and pages act on
them, and XML 1.0 has no way to hold most of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec

from cgtool.analysis.gate.judge import ERROR, GateReport, Judged
from cgtool.analysis.gate.metrics import BY_NAME
from cgtool.analysis.gate.verdict import FAIL, PASS, UNKNOWN, Verdict
from cgtool.model.capture import Frame
from cgtool.model.failure import Failure
from cgtool.render.gate_table import (
    VERDICTS,
    WORDS,
    conclusion,
    details,
    error_lines,
    explained,
    place_text,
    sentence,
)
from cgtool.render.table import Column
from cgtool.render.text import shown_file, visible

# --- GitHub Actions: workflow commands, which become annotations, and a job summary.
# https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands : a step
# shows at most ten annotations of a kind, and a summary of more than 1 MiB is refused.

MOST_ANNOTATIONS = 10
MOST_BYTES = 1024 << 10

_KINDS = {FAIL: "error", UNKNOWN: "warning"}
_SUMMARY: tuple[Column[Verdict], ...] = (*VERDICTS[:-1], Column("", lambda verdict: verdict.text))
_MARKS = {PASS: "✅", FAIL: "❌", UNKNOWN: "❔", ERROR: "❌"}


def github_commands(report: GateReport, root: Path) -> str:
    """``::error`` for what was not measured and what failed, ``::warning`` for what cannot be told;
    nothing for the rest.

    ``root`` is the top of the checkout, which annotations name their files from.
    """
    targets = list(zip(report.names(), report.targets, strict=True))
    lines = []
    for kind in (FAIL, UNKNOWN):
        annotations = [
            _command_error(name, target.error, root)
            for name, target in targets
            if target.error is not None and kind == FAIL
        ]
        annotations += [
            _command(name, verdict, root)
            for name, target in targets
            for verdict in target.verdicts
            if verdict.verdict == kind
        ]
        room = MOST_ANNOTATIONS
        room -= len(annotations) > MOST_ANNOTATIONS
        lines += annotations[:room]
        if annotations[room:]:
            rest = f"{len(annotations[room:])} more: see the job summary"
            lines.append(f"::{_KINDS[kind]} title=cgtool gate::{message((rest,))}")
    return "".join(f"{line}\n" for line in lines)


def _command(entry: str, verdict: Verdict, root: Path) -> str:
    title = f"{entry}: {verdict.metric} {WORDS[verdict.verdict]}"
    text = message((sentence(verdict), *details(verdict)))
    return f"::{_KINDS[verdict.verdict]} {_command_properties(verdict.frame, title, root)}::{text}"


def _command_error(entry: str, error: Failure, root: Path) -> str:
    frame = next((frame for frame in error.frames if frame.file), None)
    text = message((error.what, *error_lines(error)))
    return f"::error {_command_properties(frame, f'{entry} not measured', root)}::{text}"


def _command_properties(frame: Frame | None, title: str, root: Path) -> str:
    place = {} if frame is None else {"file": from_root(frame, root), "line": str(frame.line)}
    named = {**place, "title": title}
    return ",".join(f"{name}={value_of(value)}" for name, value in named.items())


def message(lines: Iterable[str]) -> str:
    """Text of a workflow command, which ends at the end of the line. What does not print shows as
    an escape: terminals and logs act on it."""
    return "%0A".join(visible(line).replace("%", "%25") for line in lines)


def value_of(text: str) -> str:
    """The value of a property, which ends at a comma or a colon too."""
    return message((text,)).replace(":", "%3A").replace(",", "%2C")


def from_root(frame: Frame, root: Path) -> str:
    """The file from the top of the checkout; as it is when it lies elsewhere."""
    path = os.path.abspath(frame.file)  # noqa: PTH100 : resolve() would follow links away
    try:
        return Path(path).relative_to(root).as_posix()
    except ValueError:
        return frame.file


def github_summary(report: GateReport, most: int = MOST_BYTES) -> str:
    """Markdown for ``$GITHUB_STEP_SUMMARY``, cut where GitHub would refuse it."""
    parts = [f"## cgtool gate {_MARKS[report.verdict]} {cell(conclusion(report).plain)}\n"]
    parts += [_section(*pair) for pair in zip(report.names(), report.targets, strict=True)]
    return cut("\n".join(parts), most)


def cut(text: str, most: int = MOST_BYTES) -> str:
    """At most so many bytes, whole lines, and a note where something was left out, if there is room
    for it."""
    data = text.encode(errors="replace")
    if len(data) <= most:
        return data.decode()
    note = "\n\n_The rest is left out: GitHub refuses longer summaries._\n"
    room = most - len(note.encode())
    return data[:room].decode(errors="ignore").rpartition("\n")[0] + note if room >= 0 else ""


def _section(name: str, target: Judged) -> str:
    if target.error is not None:
        facts = (target.error.what, *error_lines(target.error))
        return "\n".join((f"### {cell(name)}", "", *(f"- {cell(line)}" for line in facts), ""))
    device = "the simulated device" if target.simulated else target.device
    baseline = f", compared with {target.baseline}" if target.baseline else ""
    lines = [
        f"### {cell(name)}",
        "",
        cell(f"{device}, torch {target.torch}{baseline}"),
        "",
        f"| | {' | '.join(column.heading for column in _SUMMARY)} |",
        f"|---|{'|'.join('---:' if column.numeric else '---' for column in _SUMMARY)}|",
    ]
    for verdict in target.verdicts:
        cells = (column.text(column.cell(verdict)) for column in _SUMMARY)
        row = (_MARKS[verdict.verdict], *cells)
        lines.append(f"| {' | '.join(map(cell, row))} |")
    lines.append("")
    for verdict, reasons in explained(target):
        place = place_text(verdict)
        lines.append(f"**{cell(verdict.metric)}**{f' at {cell(place)}' if place else ''}\n")
        lines += [f"- {cell(line)}" for line in reasons]
        lines.append("")
    lines += [f"> {cell(note)}\n" for note in target.notes]
    return "\n".join(lines) + "\n"


_MARKDOWN = str.maketrans({one: f"\\{one}" for one in "\\`*_{}[]<>|#~$"} | {"&": "&amp;"})
_BLOCK = re.compile(r"\A(?:[-+](?= |\Z)|-(?=[- ]*\Z)|\d{1,9}[.)](?= |\Z))")
"""What makes a list or a rule of a line that begins with it."""
_LINK = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)


def cell(text: str) -> str:
    """One line of plain text in Markdown: nothing in it is read as markup, no address becomes a
    link, and what does not print shows as an escape."""
    shown = visible(text).strip(" ").translate(_MARKDOWN)
    for odd in (_BLOCK, _LINK):
        shown = odd.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", shown)
    return shown


# --- JUnit XML, which CI servers list as tests. The dialect is the one that Jenkins, GitLab and
# GitHub's test reporters share: testsuites, testsuite, testcase, failure, error, skipped and
# properties (the Ant/Jenkins schema, https://github.com/jenkinsci/xunit-plugin). What cannot be
# decided is skipped, with the reason.


def junit(report: GateReport) -> bytes:
    """One suite a target, one case a verdict."""
    root = ET.Element("testsuites", name="cgtool gate")
    suites = [_suite(root, *pair) for pair in zip(report.names(), report.targets, strict=True)]
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
    if target.error is None:
        _properties(suite, target)
    else:
        _error(suite, entry, target.error)
    for verdict in target.verdicts:
        _case(suite, entry, verdict)
    return suite


def _properties(suite: ET.Element, target: Judged) -> None:
    properties = ET.SubElement(suite, "properties")
    facts = {"device": target.device, "torch": target.torch, "baseline": target.baseline or "none"}
    for name, value in (*facts.items(), *((k, f"{v:.10g}") for k, v in target.figures.items())):
        ET.SubElement(properties, "property", name=visible(name), value=visible(value))


def _error(suite: ET.Element, entry: str, error: Failure) -> None:
    # A case of its own: a suite without cases looks like a pass.
    case = ET.SubElement(suite, "testcase", classname=visible(entry), name="measured")
    frame = next((frame for frame in error.frames if frame.file), None)
    if frame is not None:
        case.set("file", visible(shown_file(frame.file)))
        case.set("line", str(frame.line))
    kind = f"exit {error.exit_code}"
    element = ET.SubElement(case, "error", message=visible(error.what), type=kind)
    element.text = "\n".join(map(visible, (error.what, *error_lines(error))))


def _case(suite: ET.Element, entry: str, verdict: Verdict) -> None:
    # A figure may have a budget and a baseline: the name says which.
    case = ET.SubElement(
        suite,
        "testcase",
        classname=visible(entry),
        name=visible(f"{verdict.metric} ({verdict.held_to})"),
    )
    place = place_text(verdict)
    if verdict.frame is not None:
        case.set("file", visible(place.rpartition(":")[0]))
        case.set("line", str(verdict.frame.line))
    message = f"{verdict.metric}: {sentence(verdict)}"
    if verdict.verdict == FAIL:
        failure = ET.SubElement(case, "failure", message=visible(message), type="budget")
        if verdict.baseline is not None:
            failure.set("type", "regression")
        failure.text = "\n".join(map(visible, (message, *details(verdict))))
    elif verdict.verdict == UNKNOWN:
        ET.SubElement(case, "skipped", message=visible(f"cannot tell: {verdict.text}"))


# --- github-action-benchmark, as its tool ``customSmallerIsBetter`` reads it: an array of name,
# unit, value, and optionally range and extra.
# https://github.com/benchmark-action/github-action-benchmark


def benchmark_action(report: GateReport) -> bytes:
    """Every figure of every target that is better when it is smaller, judged or not."""
    rows = [
        row
        for name, target in zip(report.names(), report.targets, strict=True)
        for row in _rows(name, target)
    ]
    return msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n"


def _rows(entry: str, target: Judged) -> list[dict[str, Any]]:
    rows = []
    for name, value in target.figures.items():
        metric = BY_NAME[name.partition(".")[0]]
        whole_again = name != metric.name and value == target.figures.get(metric.name)
        if metric.larger_is_better or (whole_again and not metric.exact):
            # A time of the phase that is the whole: one chart of it is enough.
            continue
        row: dict[str, Any] = {
            "name": visible(f"{entry} {name}"),
            "unit": metric.unit or "count",
            "value": value,
        }
        spread = target.spreads.get(name)
        if spread is not None:
            row["range"] = f"± {spread:.3g}"
        lines = [
            f"{verdict.held_to}: {verdict.verdict}"
            for verdict in target.verdicts
            if verdict.metric == name
        ]
        row["extra"] = "\n".join(map(visible, (f"{target.device}, torch {target.torch}", *lines)))
        rows.append(row)
    return rows
