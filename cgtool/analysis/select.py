"""``--select``: which nodes of a capture to show.

A selection is FIELD=PATTERN with shell wildcards; several are joined by "and", alternatives of one
field by "|". Fields: module, op, type, kernel, file, line (``model.py:42``), stream, phase, graph,
annotation.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from cgtool.analysis.names import demangle, short_kernel
from cgtool.analysis.places import Place, Places, file_line
from cgtool.model.capture import Capture, Graph, Node
from cgtool.model.failure import usage

FIELDS = (
    "module", "op", "type", "kernel", "file", "line", "stream", "phase", "graph", "annotation",
)  # fmt: skip


def parse(text: str) -> tuple[str, tuple[str, ...]]:
    """``module=layers.0.*|head`` to the field and its patterns. Raises CgtoolError (exit 2)."""
    field, equals, pattern = text.partition("=")
    field = field.strip()
    if not equals or field not in FIELDS or not pattern:
        raise usage(
            f"--select {text!r}: write it as FIELD=PATTERN",
            fix=f"fields: {', '.join(FIELDS)}; for instance --select 'module=layers.0.*'",
        )
    return field, tuple(one for one in pattern.split("|") if one)


def _values(
    capture: Capture, graph: Graph, node: Node, place: Place, field: str
) -> tuple[str, ...]:
    if field == "module":
        return (place.module,) if place.module is not None else ()
    if field == "op":
        return (place.op, place.short_op or "") if place.op else ()
    if field == "kernel":
        if node.kernel is None:
            return ()
        name = capture.functions[node.kernel.function].name
        return name, demangle(name), short_kernel(name)
    if field == "file":
        return (place.line.file, place.line.file.rpartition("/")[2]) if place.line else ()
    if field == "line":
        line = place.line
        return (file_line(line), f"{line.file}:{line.line}") if line else ()
    if field == "stream":
        return (capture.streams[node.stream].name,) if node.stream is not None else ()
    if field == "annotation":
        return place.annotations
    return {"type": (node.type,), "phase": (graph.phase,), "graph": (graph.name,)}[field]


def select(capture: Capture, selections: tuple[str, ...]) -> list[list[int]]:
    """Ids of the nodes that match every selection, one list a graph.

    Raises CgtoolError (exit 2) for a selection that is none, or that nothing matches.
    """
    wanted = [parse(one) for one in selections]
    if not wanted:
        return [list(range(len(graph.nodes))) for graph in capture.graphs]
    places = Places(capture)
    # Nodes of one origin share most values: decide once a distinct combination.
    known: dict[tuple[int | None, int | None, str, int | None, str], bool] = {}
    found: list[list[int]] = []
    for graph in capture.graphs:
        chosen: list[int] = []
        for node in graph.nodes:
            function = node.kernel.function if node.kernel else None
            key = (node.origin, function, node.type, node.stream, graph.name)
            match = known.get(key)
            if match is None:
                place = places.of(node)
                match = known[key] = all(
                    any(
                        fnmatchcase(value, pattern)
                        for value in _values(capture, graph, node, place, field)
                        for pattern in patterns
                    )
                    for field, patterns in wanted
                )
            if match:
                chosen.append(node.id)
        found.append(chosen)
    if not any(found):
        raise usage(
            f"--select {' '.join(selections)}: no node matches",
            fix="`cgtool dump CAPTURE --json` lists the values of every node",
        )
    return found
