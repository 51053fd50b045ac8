"""``--select``: which nodes to show, by what they are and where they come from."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from cgtool.analysis.graph.kernel_names import demangle, short_kernel
from cgtool.analysis.graph.places import Places
from cgtool.analysis.graph.view import View, only, whole
from cgtool.model.capture import Capture, Frame, Graph, Node
from cgtool.model.failure import usage

GRAMMAR = """FIELD=PATTERN or FIELD!=PATTERN; PATTERN may hold * ? [abc], and | between
alternatives. Several, with commas or a repeated option, must all hold. Fields: module (a module
and all inside it), op (aten::add.Tensor or add), type (kernel, memcpy, memset, ...), kernel
(short, demangled or mangled name), file, line (model.py:42 or model.py:40-60, anywhere in the call
chain), stream, phase, graph, annotation, node (12 or 3-7). As in 'module=layers.0.*,type=kernel'
or 'op=mm|addmm'."""

_TERM = re.compile(r"\s*([A-Za-z_]+)\s*(!?=)\s*(.*?)\s*", re.DOTALL)
_NEXT = re.compile(r",(?=\s*[A-Za-z_]+\s*!?=)")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")

Match = Callable[[str], bool]


@dataclass(frozen=True)
class Term:
    """One condition."""

    field: str
    patterns: tuple[str, ...]
    """One of these."""
    negated: bool = False


Selection = tuple[Term, ...]
"""All of these."""


def parse(expressions: Sequence[str]) -> Selection:
    """Read ``--select`` options. Raises CgtoolError (exit 2) that names what is wrong."""
    return tuple(
        _term(text, expression) for expression in expressions for text in _NEXT.split(expression)
    )


def _term(text: str, expression: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None or not match[3]:
        raise usage(
            f"--select {expression!r}: {text.strip()!r} is not FIELD=PATTERN",
            fix=f"for example --select 'module=layers.0,type=kernel'; fields: {', '.join(_FIELDS)}",
        )
    name, operator, alternatives = match.groups()
    if name not in _FIELDS:
        raise usage(
            f"--select {expression!r}: there is no field {name!r}",
            fix=f"fields: {', '.join(_FIELDS)}",
        )
    patterns = tuple(word.strip() for word in alternatives.split("|") if word.strip())
    for pattern in patterns:
        if name == "node" and _RANGE.fullmatch(pattern) is None:
            raise usage(
                f"--select {expression!r}: {pattern!r} is not a node number",
                fix="for example node=12 or node=3-7",
            )
        if name == "line" and _RANGE.fullmatch(pattern.rpartition(":")[2]) is None:
            raise usage(
                f"--select {expression!r}: {pattern!r} is not FILE:LINE",
                fix="for example line=model.py:42 or line=model.py:40-60",
            )
        if name in ("node", "line"):
            _check_range(name, pattern, expression)
    return Term(name, patterns, operator == "!=")


def _check_range(name: str, pattern: str, expression: str) -> None:
    place, _, numbers = pattern.rpartition(":")
    first, last = _numbers(numbers)
    if last < first:
        place += ":" if place else ""
        raise usage(
            f"--select {expression!r}: the range {numbers} is backwards",
            fix=f"write {name}={place}{last}-{first}",
        )


def select(capture: Capture, index: int, selection: Selection) -> View:
    """The part of a graph that the selection keeps, and the paths between; all of it without
    a selection. Bodies of child and conditional nodes are graphs of their own."""
    graph = capture.graphs[index]
    if not selection:
        return whole(index, graph)
    tests = [_prepare(capture, graph, term) for term in selection]
    shown = [all(holds(node) for holds in tests) for node in graph.nodes]
    return only(index, graph, shown)


def _prepare(capture: Capture, graph: Graph, term: Term) -> Callable[[Node], bool]:
    """The term as a test of one node; each distinct value is looked at once."""
    key, value = _FIELDS[term.field]
    known: dict[Hashable, bool] = {}
    tests = [value(capture, graph, pattern) for pattern in term.patterns]

    def holds(node: Node) -> bool:
        at = key(node)
        answer = known.get(at)
        if answer is None:
            answer = known[at] = any(test(node) for test in tests) != term.negated
        return answer

    return holds


def _glob(pattern: str) -> Match:
    compiled = re.compile(fnmatch.translate(pattern))
    return lambda text: compiled.match(text) is not None


def _any(texts: Callable[[Node], Sequence[str]]) -> _Value:
    """A field whose value is one or more texts."""

    def prepare(_capture: Capture, _graph: Graph, pattern: str) -> Callable[[Node], bool]:
        match = _glob(pattern)
        return lambda node: any(match(text) for text in texts(node))

    return prepare


_Value = Callable[[Capture, Graph, str], Callable[[Node], bool]]


def _module(capture: Capture, _graph: Graph, pattern: str) -> Callable[[Node], bool]:
    places = Places(capture)
    itself, inside = _glob(pattern), _glob(f"{pattern}.*")

    def test(node: Node) -> bool:
        module = places.of(node).module
        if module is None:
            return pattern == "(no module)"
        return itself(module or "(root)") or inside(module)

    return test


def _op(capture: Capture, _graph: Graph, pattern: str) -> Callable[[Node], bool]:
    places, match = Places(capture), _glob(pattern)

    def test(node: Node) -> bool:
        place = places.of(node)
        op = place.op
        if op is None:
            return False
        return any(match(text) for text in (op, op.partition(".")[0], place.short_op or ""))

    return test


def _kernel(capture: Capture, _graph: Graph, pattern: str) -> Callable[[Node], bool]:
    match = _glob(pattern)

    def test(node: Node) -> bool:
        if node.kernel is None:
            return False
        name = capture.functions[node.kernel.function].name
        return match(name) or match(short_kernel(name)) or match(demangle(name))

    return test


def _chain(capture: Capture, node: Node) -> list[Frame]:
    """Every frame behind a node, those of its forward op included."""
    if node.origin is None:
        return []
    origin = capture.origins[node.origin]
    frames = list(origin.frames)
    if origin.forward is not None:
        frames += capture.origins[origin.forward].frames
    return [capture.frames[index] for index in frames]


def _file(capture: Capture, _graph: Graph, pattern: str) -> Callable[[Node], bool]:
    path, tail = _glob(pattern), _glob(f"*/{pattern}")

    def test(node: Node) -> bool:
        return any(path(frame.file) or tail(frame.file) for frame in _chain(capture, node))

    return test


def _line(capture: Capture, _graph: Graph, pattern: str) -> Callable[[Node], bool]:
    file, _, numbers = pattern.rpartition(":")
    first, last = _numbers(numbers)
    path, tail = _glob(file or "*"), _glob(f"*/{file}")

    def test(node: Node) -> bool:
        return any(
            first <= frame.line <= last and (path(frame.file) or tail(frame.file))
            for frame in _chain(capture, node)
        )

    return test


def _numbers(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _node(_capture: Capture, _graph: Graph, pattern: str) -> Callable[[Node], bool]:
    first, last = _numbers(pattern)
    return lambda node: first <= node.id <= last


def _stream(capture: Capture, _graph: Graph, pattern: str) -> Callable[[Node], bool]:
    match = _glob(pattern)

    def test(node: Node) -> bool:
        if node.stream is None:
            return False
        return match(capture.streams[node.stream].name) or match(str(node.stream))

    return test


def _phase(_capture: Capture, graph: Graph, pattern: str) -> Callable[[Node], bool]:
    answer = _glob(pattern)(graph.phase)
    return lambda _node: answer


def _graph_name(_capture: Capture, graph: Graph, pattern: str) -> Callable[[Node], bool]:
    answer = _glob(pattern)(graph.name)
    return lambda _node: answer


def _annotation(capture: Capture, _graph: Graph, pattern: str) -> Callable[[Node], bool]:
    places, match = Places(capture), _glob(pattern)
    return lambda node: any(match(text) for text in places.of(node).annotations)


def _of_origin(node: Node) -> Hashable:
    return node.origin


def _of_function(node: Node) -> Hashable:
    return None if node.kernel is None else node.kernel.function


_FIELDS: dict[str, tuple[Callable[[Node], Hashable], _Value]] = {
    "module": (_of_origin, _module),
    "op": (_of_origin, _op),
    "type": (lambda node: node.type, _any(lambda node: (node.type,))),
    "kernel": (_of_function, _kernel),
    "file": (_of_origin, _file),
    "line": (_of_origin, _line),
    "stream": (lambda node: node.stream, _stream),
    "phase": (lambda _node: None, _phase),
    "graph": (lambda _node: None, _graph_name),
    "annotation": (_of_origin, _annotation),
    "node": (lambda node: node.id, _node),
}
"""Field to what its answer depends on, and the test."""
