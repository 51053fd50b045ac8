"""Verdicts as JUnit XML, which CI servers list as tests.

The dialect is the one that Jenkins, GitLab and GitHub's test reporters share: ``testsuites``,
``testsuite``, ``testcase``, ``failure``, ``error``, ``skipped``, ``properties`` (the Ant/Jenkins
schema, https://github.com/jenkinsci/xunit-plugin). What cannot be told is skipped, with the reason.

Characters that do not print are written as escapes: XML 1.0 has no way to hold most of them, and
readers differ in what they do with the rest.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from cgtool.analysis.gate.report import FAIL, UNKNOWN, GateReport, Judged, Verdict
from cgtool.model.failure import Failure
from cgtool.render.gate_table import details, error_lines, place_text, sentence
from cgtool.render.source import shown_file
from cgtool.render.text import visible


def encode(report: GateReport) -> bytes:
    """One suite a target, one case a verdict."""
    root = ET.Element("testsuites", name="cgtool gate")
    suites = [_suite(root, *pair) for pair in zip(report.names(), report.targets, strict=True)]
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _suite(root: ET.Element, entry: str, target: Judged) -> ET.Element:
    verdicts = [one.verdict for one in target.verdicts]
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
    frame = next((one for one in error.frames if one.file), None)
    if frame is not None:
        case.set("file", visible(shown_file(frame.file)))
        case.set("line", str(frame.line))
    kind = f"exit {error.exit_code}"
    made = ET.SubElement(case, "error", message=visible(error.what), type=kind)
    made.text = "\n".join(map(visible, (error.what, *error_lines(error))))


def _case(suite: ET.Element, entry: str, verdict: Verdict) -> None:
    # A budget and a baseline may both hold one figure: the name tells which.
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
