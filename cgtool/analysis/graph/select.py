"""``--select``: which nodes to show, by what they are and where they come from."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from cgtool.analysis.graph.kernel_names import demangle, short_kernel
from cgtool.analysis.graph.places import Places, frames_of, short_op
from cgtool.analysis.graph.view import View, only, whole
from cgtool.model.capture import Capture, Frame, Graph, Node
from cgtool.model.failure import usage

GRAMMAR = """FIELD=PATTERN or FIELD!=PATTERN. PATTERN may contain * ? [abc], and | between
alternatives. Separate several with commas, or repeat the option; a node must match all of them.
Fields: module (a module and everything in it), op (aten::add.Tensor or add), type (kernel, memcpy,
memset, ...), kernel (short, demangled or mangled name), file, line (model.py:42 or
model.py:40-60, anywhere in the call chain), stream, phase, graph, annotation, node (12 or 3-7).
Examples: 'module=layers.0.*,type=kernel', 'op=mm|addmm'."""

_TERM = re.compile(r"\s*([A-Za-z_]+)\s*(!?=)\s*(.*?)\s*", re.DOTALL)
_NEXT = re.compile(r",(?=\s*[A-Za-z_]+\s*!?=)")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")

FIELDS: dict[str, Callable[[Node], Hashable]] = {
    **dict.fromkeys(("module", "op", "file", "line", "annotation"), lambda node: node.origin),
    "type": lambda node: node.type,
    "kernel": lambda node: None if node.kernel is None else node.kernel.function,
    "stream": lambda node: node.stream,
    "node": lambda node: node.id,
    **dict.fromkeys(("phase", "graph"), lambda _node: None),
}
"""Each field, and what its value depends on."""


@dataclass(frozen=True)
class Term:
    """One condition."""

    field: str
    patterns: tuple[str, ...]
    """One of these must match."""
    negated: bool = False


Selection = tuple[Term, ...]
"""All of these must match."""


def parse(expressions: Sequence[str], where: str = "--select ") -> Selection:
    """Parse ``--select`` options. Raises CgtoolError (exit 2) for an invalid one, whose text
    ``where`` introduces."""
    return tuple(
        _term(text, f"{where}{expression!r}", where)
        for expression in expressions
        for text in _NEXT.split(expression)
    )


def _term(text: str, expression: str, where: str) -> Term:
    fields = f"fields: {', '.join(FIELDS)}"
    match = _TERM.fullmatch(text)
    if match is None or not match[3]:
        raise usage(
            f"{expression}: {text.strip()!r} is not FIELD=PATTERN",
            fix=f"for example {where}'module=layers.0,type=kernel'; {fields}",
        )
    name, operator, alternatives = match.groups()
    if name not in FIELDS:
        raise usage(f"{expression}: there is no field {name!r}", fix=fields)
    patterns = tuple(word.strip() for word in alternatives.split("|") if word.strip())
    for pattern in patterns if name in ("node", "line") else ():
        place, colon, numbers = pattern.rpartition(":") if name == "line" else ("", "", pattern)
        if _RANGE.fullmatch(numbers) is None:
            form = "FILE:LINE" if name == "line" else "a node number"
            example = "line=model.py:42 or line=model.py:40-60"
            raise usage(
                f"{expression}: {pattern!r} is not {form}",
                fix=f"for example {example if name == 'line' else 'node=12 or node=3-7'}",
            )
        first, last = _numbers(numbers)
        if last < first:
            raise usage(
                f"{expression}: the range {numbers} is backwards",
                fix=f"write {name}={place}{colon}{last}-{first}",
            )
    return Term(name, patterns, operator == "!=")


def select(capture: Capture, index: int, selection: Selection) -> View:
    """The part of a graph that the selection keeps, and the paths between; all of it without
    a selection. Bodies of child and conditional nodes are graphs of their own."""
    graph = capture.graphs[index]
    if not selection:
        return whole(index, graph)
    return only(index, graph, selected(capture, graph, selection))


def selected(capture: Capture, graph: Graph, selection: Selection) -> list[bool]:
    """Whether each node of a graph is selected."""
    tests = [_prepare(capture, graph, term) for term in selection]
    return [all(holds(node) for holds in tests) for node in graph.nodes]


def _prepare(capture: Capture, graph: Graph, term: Term) -> Callable[[Node], bool]:
    """The term as a test of one node; each distinct value is looked at once."""
    key = FIELDS[term.field]
    known: dict[Hashable, bool] = {}
    tests = [_test(capture, graph, term.field, pattern) for pattern in term.patterns]

    def holds(node: Node) -> bool:
        at = key(node)
        answer = known.get(at)
        if answer is None:
            answer = known[at] = any(test(node) for test in tests) != term.negated
        return answer

    return holds


def _test(capture: Capture, graph: Graph, field: str, pattern: str) -> Callable[[Node], bool]:
    """Whether one pattern of a field matches a node."""
    if field == "node":
        first, last = _numbers(pattern)
        return lambda node: first <= node.id <= last
    if field in ("file", "line"):
        holds = _in_lines(field, pattern)
        return lambda node: any(map(holds, _chain(capture, node)))
    places, match = Places(capture), _glob(pattern)
    if field != "module":
        return lambda node: any(map(match, _texts(capture, graph, places, field, node)))
    inside = _glob(f"{pattern}.*")

    def in_module(node: Node) -> bool:
        module = places.of(node).module
        if module is None:
            return pattern == "(no module)"
        return match(module or "(root)") or inside(module)

    return in_module


def in_lines(text: str) -> Callable[[Frame], bool]:
    """Whether a frame is in one of these lines. Raises CgtoolError as ``line=`` does."""
    (term,) = parse([f"line={text}"], where="")
    tests = [_in_lines(term.field, pattern) for pattern in term.patterns]
    return lambda frame: any(test(frame) for test in tests)


def _in_lines(field: str, pattern: str) -> Callable[[Frame], bool]:
    """Whether a frame matches a pattern of the field ``line`` or ``file``."""
    file, _, numbers = pattern.rpartition(":") if field == "line" else (pattern, "", "")
    lines = _numbers(numbers) if numbers else None
    path, tail = _glob(file or "*"), _glob(f"*/{file}")
    return lambda frame: (
        (lines is None or lines[0] <= frame.line <= lines[1])
        and (path(frame.file) or tail(frame.file))
    )


def _texts(capture: Capture, graph: Graph, places: Places, field: str, node: Node) -> Sequence[str]:
    """The texts that a pattern of a field is compared with: one of them has to match."""
    match field:
        case "op":
            op = places.of(node).op
            return () if op is None else (op, op.partition(".")[0], short_op(op))
        case "type":
            return (node.type,)
        case "kernel":
            if node.kernel is None:
                return ()
            name = capture.functions[node.kernel.function].name
            return name, short_kernel(name), demangle(name)
        case "stream":
            stream = node.stream
            return () if stream is None else (capture.streams[stream].name, str(stream))
        case "phase":
            return (graph.phase,)
        case "graph":
            return (graph.name,)
        case _:
            return places.of(node).annotations


def _chain(capture: Capture, node: Node) -> tuple[Frame, ...]:
    """Every frame behind a node, those of its forward op included."""
    if node.origin is None:
        return ()
    forward = capture.origins[node.origin].forward
    return frames_of(capture, node.origin) + frames_of(capture, forward)


def _glob(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(fnmatch.translate(pattern))
    return lambda text: compiled.match(text) is not None


def _numbers(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
