"""JSON: reports, ``{"schema": NAME, "schema_version": N, ...}``; SARIF of findings; graphs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

import cgtool
from cgtool.analysis.graph.places import NodeDescriber
from cgtool.analysis.graph.view import Link, View
from cgtool.analysis.ledger_memory import used_memory
from cgtool.analysis.reports import ExplainedFinding, explain, place_of
from cgtool.findings import page
from cgtool.model.capture import Capture, Frame, Function, KernelLaunch, Node, TensorValues
from cgtool.model.failure import Failure
from cgtool.model.files import encode_json
from cgtool.model.finding import Finding, Report
from cgtool.model.schema import Field, fields, reader

_VERSIONS = {
    "cgtool-bench": 2, "cgtool-diff": 2, "cgtool-gate": 2, "cgtool-pools": 2,
    "cgtool-profile": 2,
}  # fmt: skip
"""The versions of the schemas that have changed; all others are at 1."""
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ACTED_ON = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that JSON allows in a string and that terminals and editors act on: controls and
directions."""


def encode(schema: str, report: Any) -> bytes:
    """A report of an analysis as one indented JSON object, with a newline."""
    body = msgspec.to_builtins(report)
    if isinstance(report, Report):
        # Read back, these are a finding's own.
        body["findings"] = list(map(_finding, report.findings))
    return json_bytes(
        {"schema": schema, "schema_version": _VERSIONS.get(schema, 1), **body}, indent=2
    )


def encode_failure(failure: Failure) -> bytes:
    """Why a command has no report, as an object that is printed in its place."""
    found = [_finding(finding) for finding in failure.findings]
    cause = found[0] if found else {}
    place = failure.frames[0] if failure.frames else None
    error = {
        "code": cause.get("code"),
        "message": failure.message,
        "file": place.file if place else cause.get("file"),
        "line": place.line if place else cause.get("line"),
        "why": failure.why,
        "fix": failure.fix or cause.get("fix"),
        "exit_code": failure.exit_code,
        "phase": failure.phase,
        "frames": msgspec.to_builtins(failure.frames),
        "findings": found,
    }
    return json_bytes({"schema": "cgtool-error", "schema_version": 1, "error": error}, indent=2)


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding as it is saved, with what a reader looks for first by name."""
    explained = explain(finding)
    file, line = (explained.place.file, explained.place.line) if explained.place else (None, None)
    return {
        "severity": explained.severity,
        "code": finding.code,
        "title": explained.title,
        "file": file,
        "line": line,
        **msgspec.to_builtins(finding),
        "fix": explained.fix,
    }


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """JSON with a newline; those characters are escapes, which readers turn back."""
    data = encode_json(value)
    if not data.isascii() or b"\x7f" in data:
        data = _ACTED_ON.sub(lambda match: f"\\u{ord(match[0]):04x}", data.decode()).encode()
    return (data if indent is None else msgspec.json.format(data, indent=indent)) + b"\n"


def sarif(findings: Sequence[ExplainedFinding]) -> bytes:
    """Findings as SARIF 2.1.0 (OASIS), which code review tools show at the line: one run, one
    result per finding; rules are the codes that occur.

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
    return json_bytes(log, indent=2)


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
    related = [frame for frame in (place_of(finding.forward), finding.library) if frame]
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


class ResolvedNode(msgspec.Struct, omit_defaults=True, gc=False):
    """A node with the things that its indices refer to."""

    id: int
    type: str
    op: str | None = None
    module: str | None = None
    module_type: str | None = None
    file: str | None = None
    """With ``line`` and ``function``: the innermost Python frame outside torch."""
    line: int | None = None
    function: str | None = None
    forward_op: str | None = None
    forward_file: str | None = None
    """In backward: the line of the forward op that created the autograd node."""
    forward_line: int | None = None
    autograd_node: str | None = None
    annotations: tuple[str, ...] = ()
    stream: str | None = None
    kernel: str | None = None
    """Short name that no other kernel of this capture has."""
    kernel_demangled: str | None = None
    kernel_mangled: str | None = None
    allocations: tuple[int, ...] = ()
    """Indices of the captured allocations that the arguments point into."""
    tensors: tuple[str, ...] = ()
    """Names of the earlier tensors that they point into."""
    values: tuple[TensorValues, ...] = ()
    """What ``cgtool debug`` saw there."""


def _own_fields(struct: type[msgspec.Struct], *resolved: str) -> list[Field]:
    """The fields that are neither resolved above nor details of arguments."""
    return [
        field
        for field in fields(struct)
        if field.name not in resolved and not (field.struct is not None and field.many)
    ]


_LAUNCH = _own_fields(KernelLaunch, "function")
_FUNCTION = _own_fields(Function, "name")
_NODE = _own_fields(Node, "id", "type", "origin", "stream", "kernel")
_launch, _function, _node = reader(_LAUNCH), reader(_FUNCTION), reader(_NODE)
_NO_KERNEL = [() if field.many else None for field in (*_LAUNCH, *_FUNCTION)]

NodeJson: Any = msgspec.defstruct(
    "NodeJson",
    [(field.name, Any, () if field.many else None) for field in (*_LAUNCH, *_FUNCTION, *_NODE)],
    bases=(ResolvedNode,),
    omit_defaults=True,
    gc=False,
)
"""A node. Sizes in bytes, times in nanoseconds."""


def encode_graphs(capture: Capture, views: Sequence[View]) -> bytes:
    """The graphs of a capture with every name resolved, node by node, for scripts.

    One object: ``schema`` (``cgtool-graphs``), ``schema_version`` (1), ``entry``, ``environment``,
    ``caveats`` and ``graphs``. Each graph has ``name``, ``phase``, ``node_count`` (shown or not),
    ``nodes`` and ``edges``; of a program, also ``memory``: what the graph has not allocated, by the
    numbers of the graphs with these nodes, with the keys of ``UsedMemory``. Each edge is
    ``[source, target, kind]`` by node id, where kind is ``full``, ``programmatic``, or ``hidden``
    for a path through nodes that a selection left out. Where such paths meet and part again, a node
    with a negative id and the type ``hidden`` represents them.

    A node has the keys of ``ResolvedNode``, and every field of ``Node``, ``KernelLaunch`` and
    ``Function`` (docs/capture-format.md) that is not an index; a new field is there by itself. A
    key that would say nothing is left out.
    """
    describer = NodeDescriber(capture)
    graphs = []
    for view in views:
        graph = capture.graphs[view.graph]
        ids = [
            item.members[0] if item.members else -position - 1
            for position, item in enumerate(view.items)
        ]
        shown = {
            "name": graph.name,
            "phase": graph.phase,
            "node_count": view.node_count,
            "nodes": [
                _node_json(describer, graph.nodes[id_]) if id_ >= 0 else NodeJson(id_, "hidden")
                for id_ in ids
            ],
            "edges": [(ids[link.source], ids[link.target], _kind(link)) for link in view.links],
        }
        if memory := used_memory(capture, view.graph):
            shown["memory"] = memory
        graphs.append(shown)
    body = {
        "schema": "cgtool-graphs",
        "schema_version": 1,
        "entry": capture.entry,
        "environment": capture.environment,
        "caveats": capture.caveats,
        "graphs": graphs,
    }
    return json_bytes(body)


def _kind(link: Link) -> str:
    if link.hidden:
        return "hidden"
    return "programmatic" if link.programmatic else "full"


def _node_json(describer: NodeDescriber, node: Node) -> Any:
    capture, launch = describer.capture, node.kernel
    place = describer.places.of(node)
    nowhere = Frame("", 0, "")
    frame, forward = place.frame or nowhere, place.forward_frame or nowhere
    names: tuple[str | None, ...] = (None, None, None)
    of_kernel: Sequence[Any] = _NO_KERNEL
    if launch is not None:
        function = capture.functions[launch.function]
        index = launch.function
        names = (describer.short_kernels[index], describer.full_kernels[index], function.name)
        of_kernel = (*_launch(launch), *_function(function))
    return NodeJson(
        node.id,
        node.type,
        place.op,
        place.module,
        place.module_type,
        frame.file or None,
        frame.line or None,
        frame.function or None,
        place.forward_op,
        forward.file or None,
        forward.line or None,
        place.autograd_node,
        place.annotations,
        None if node.stream is None else capture.streams[node.stream].name,
        *names,
        *describer.arguments(node),
        node.values,
        *of_kernel,
        *_node(node),
    )
