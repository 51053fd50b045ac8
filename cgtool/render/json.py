"""JSON of reports, ``{"schema": NAME, "schema_version": 1, ...}``, and SARIF of findings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

import cgtool
from cgtool.analysis.reports import ExplainedFinding
from cgtool.findings.registry import page
from cgtool.model.capture import Frame
from cgtool.model.files import encode_json

VERSION = 1
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ACTED_ON = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that JSON allows in a string and that terminals and editors act on: controls and
directions."""


def encode(schema: str, report: Any) -> bytes:
    """A report of an analysis as one indented JSON object, with a newline."""
    body = msgspec.to_builtins(report)
    return plain({"schema": schema, "schema_version": VERSION, **body}, indent=2)


def plain(value: Any, *, indent: int | None = None) -> bytes:
    """JSON with a newline; those characters are escapes, which readers turn back."""
    data = encode_json(value)
    if not data.isascii() or b"\x7f" in data:
        data = _ACTED_ON.sub(lambda match: f"\\u{ord(match[0]):04x}", data.decode()).encode()
    return (data if indent is None else msgspec.json.format(data, indent=indent)) + b"\n"


def sarif(findings: Sequence[ExplainedFinding]) -> bytes:
    """Findings as SARIF 2.1.0 (OASIS), which code review tools show beside the line: one run, one
    result a finding; rules are the codes that occur.

    https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
    """
    codes = sorted({finding.code for finding in findings})
    log = {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "cgtool",
                        "semanticVersion": cgtool.__version__,
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "originalUriBaseIds": {"%SRCROOT%": {"uri": Path.cwd().as_uri() + "/"}},
                "results": [_result(finding, codes.index(finding.code)) for finding in findings],
            }
        ],
    }
    return plain(log, indent=2)


def _rule(code: str) -> dict[str, Any]:
    known = page(code)
    if known is None:
        return {"id": code}
    return {
        "id": code,
        "shortDescription": {"text": known.head.title},
        "fullDescription": {"text": f"{known.head.title}; fix: {known.head.fix}"},
        "help": {"text": known.head.fix, "markdown": known.text},
        "defaultConfiguration": {"level": known.head.severity},
        "properties": {"tags": [known.head.category]},
    }


def _result(finding: ExplainedFinding, rule: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": f"{finding.reason}; fix: {finding.fix}"},
        "properties": {
            "phase": finding.phase,
            "module": finding.module,
            "evidence": list(finding.evidence),
        },
    }
    if finding.place is not None:
        location = _location(finding.place)
        if finding.module is not None:
            location["logicalLocations"] = [
                {"fullyQualifiedName": finding.module or "(root)", "kind": "module"}
            ]
        result["locations"] = [location]
        if finding.chain:
            calls = (finding.place, *finding.chain)
            result["stacks"] = [{"frames": [{"location": _location(frame)} for frame in calls]}]
    related = [frame for frame in (finding.forward, finding.library) if frame is not None]
    if related:
        result["relatedLocations"] = [_location(frame) for frame in related]
    return result


def _location(frame: Frame) -> dict[str, Any]:
    path = Path(frame.file)
    artifact: dict[str, Any] = {}
    try:
        artifact["uri"] = quote(path.relative_to(Path.cwd()).as_posix())
        artifact["uriBaseId"] = "%SRCROOT%"
    except ValueError:
        artifact["uri"] = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    return {
        "physicalLocation": {
            "artifactLocation": artifact,
            "region": {"startLine": max(1, frame.line)},
        }
    }
