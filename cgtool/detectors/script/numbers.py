"""Numbers and flags of Python's that captured code reads, and that have changed by the replay.

Functions that the capture calls are read whole (``hostreads``). Of the functions that were running
when it began, the lines between its begin and its end count, and locals do too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.observe.frames import frames_of, is_internal, line_of
from cgtool.observe.host_reads import HostReads, Snapshot
from cgtool.observe.script.names import Stack, locals_of, stack_of
from cgtool.observe.script.state import Op, WatchedGraph
from cgtool.observe.source import tree_of
from cgtool.torch_compat.private import pytree

CONTROL_FLOW_FROZEN = code("control-flow-frozen")
CPU_STATE_STEP_COUNTER = code("cpu-state-step-counter")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")

_OFTEN = 32
"""Replays of a graph that are all looked at; of those after, one in so many."""
Place = tuple[str, int]
_Step = tuple[str, str | int]


@dataclass(frozen=True)
class _Local:
    """A name in a function that goes on after the capture, with what follows it."""

    code: CodeType
    frame: int
    text: str
    root: str
    steps: tuple[_Step, ...]
    line: int
    tested: bool
    value: Any


@dataclass
class _Capture:
    """What one capture read."""

    reads: HostReads = field(default_factory=HostReads)
    locals: list[_Local] = field(default_factory=list)
    state: Snapshot = field(default_factory=dict)
    numbers: dict[tuple[str, str], set[Any]] = field(default_factory=dict)
    """Given to ops, by the file and the function that called them."""
    lines: set[Place] = field(default_factory=set)
    """Where ops were called."""
    chains: dict[Place, tuple[Frame, ...]] = field(default_factory=dict)


class Numbers(Check):
    """``python-scalar-frozen``, ``control-flow-frozen``, ``cpu-state-step-counter``."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._captures: dict[int, _Capture] = {}

    def begun(self, graph: WatchedGraph) -> None:
        found = self._captures[graph.number] = _Capture()
        frame = self.watch.frame()
        if frame is not None:
            found.locals = list(_locals(frame, graph.lines))

    def captured(self, graph: WatchedGraph, op: Op, fresh: list[int]) -> None:
        found = self._captures[graph.number]
        frame = self.watch.frame()
        while frame is not None and id(frame) not in graph.outer:
            if not is_internal(frame.f_code):
                found.reads.see_one(frame)
                locals_of(frame)
            frame = frame.f_back
        if op.call is None:
            return
        given = {
            one
            for one in pytree.tree_leaves((op.args, op.kwargs))
            if type(one) in (int, float, bool)
        }
        for site in op.call.chain[:3]:
            name = site[0].co_filename, site[0].co_qualname
            found.numbers.setdefault(name, set()).update(given)
        for site in op.call.chain[:1]:
            place = site[0].co_filename, line_of(site)
            found.lines.add(place)
            found.chains.setdefault(place, frames_of(op.call.chain))

    def ended(self, graph: WatchedGraph) -> None:
        found = self._captures[graph.number]
        found.state = found.reads.snapshot()
        for one in found.reads.watched:
            if one.use.written and not one.use.tested:
                self._counter(found, one)
        # What leads to tensors would keep them alive.
        slim = HostReads()
        slim.watched = [
            one
            for index, one in enumerate(found.reads.watched)
            if index in found.state and found.state[index].kind == "number"
        ]
        found.reads, found.state = slim, slim.snapshot()

    def _counter(self, found: _Capture, written: Any) -> None:
        """Moved by the captured code itself, and read by an op of it."""
        line = written.frame
        here = [
            one
            for one in found.reads.uses_at(line.file, line.line)
            if one.use.text == written.use.text and not one.use.written
        ]
        read = [
            one
            for one in found.reads.watched
            if one.use.text == written.use.text
            and one.owner == written.owner
            and not one.use.written
            and (one.frame.file, one.frame.line) in found.lines
        ]
        value = found.state.get(found.reads.watched.index(written))
        if here and read and value is not None and value.kind == "number":
            self.watch.report(
                CPU_STATE_STEP_COUNTER,
                f"{written.use.text} moves with every call on the host, and a replay does not "
                "move it",
                (line,),
                evidence=(f"{value.shown} in the graph",),
                phase="capture",
            )

    def replaying(self, graph: WatchedGraph) -> None:
        found = self._captures.get(graph.number)
        if found is None or (graph.replays >= _OFTEN and graph.replays % _OFTEN):
            return
        if any(one is not graph and one.frames == graph.frames for one in self.watch.graphs):
            # One graph for each value: what has changed since is the choice between them.
            return
        for one in found.reads.changes(found.state, found.reads.snapshot()):
            if one.before.kind == "number" and one.after.kind == "number":
                use, place = one.watched.use, one.watched.frame
                if use.text.endswith(".training") or use.written:
                    continue
                self._changed(
                    found,
                    use.text,
                    use.tested,
                    place,
                    one.before.content,
                    (one.before.shown, one.after.shown),
                )
        if found.locals:
            stack = stack_of(self.watch.frame())
            for local in found.locals:
                now = _value(local, stack)
                if type(now) is type(local.value) and now != local.value:
                    place = Frame(local.code.co_filename, local.line, local.code.co_qualname)
                    shown = repr(local.value), repr(now)
                    self._changed(
                        found, local.text, local.tested, place, local.value, shown, derived=True
                    )

    def _changed(
        self,
        found: _Capture,
        text: str,
        tested: bool,
        place: Frame,
        before: Any,
        shown: tuple[str, str],
        derived: bool = False,
    ) -> None:
        evidence = (f"{text} was {shown[0]} when captured, and is {shown[1]} now",)
        frames = found.chains.get((place.file, place.line), (place,))
        if tested:
            self.watch.report(
                CONTROL_FLOW_FROZEN,
                f"{text} decides here and has changed since the capture: the replay repeats the "
                "ops of the capture",
                frames if frames[0] == place else (place,),
                evidence=evidence,
                phase="replay",
            )
            return
        on_line = (place.file, place.line) in found.lines
        given = before in found.numbers.get((place.file, place.function), ())
        if given or (on_line and derived):
            self.watch.report(
                PYTHON_SCALAR_FROZEN,
                f"{text} has changed since the capture: the replay goes on with the old value",
                frames,
                evidence=evidence,
                phase="replay",
            )


class _Reads(ast.NodeVisitor):
    """Names with their attributes and constant keys, as they are read."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, tuple[_Step, ...], int, bool]] = []
        self._tested = False

    def _chain(self, node: ast.expr) -> tuple[str, tuple[_Step, ...]] | None:
        steps: list[_Step] = []
        while not isinstance(node, ast.Name):
            if isinstance(node, ast.Attribute):
                steps.append(("attribute", node.attr))
                node = node.value
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                key = node.slice.value
                if not isinstance(key, str | int):
                    return None
                steps.append(("item", key))
                node = node.value
            else:
                return None
        return node.id, tuple(reversed(steps))

    def _read(self, node: ast.Attribute | ast.Subscript | ast.Name) -> None:
        chain = self._chain(node)
        if chain is None:
            self.generic_visit(node)
        elif isinstance(node.ctx, ast.Load):
            self.found.append((ast.unparse(node), *chain, node.lineno, self._tested))

    visit_Attribute = visit_Subscript = visit_Name = _read  # noqa: N815

    def _condition(self, test: ast.expr, rest: list[Any]) -> None:
        self._tested = True
        self.visit(test)
        self._tested = False
        for one in rest:
            self.visit(one)

    def visit_If(self, node: ast.If) -> None:
        self._condition(node.test, [*node.body, *node.orelse])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test, [node.body, node.orelse])

    def visit_For(self, node: ast.For) -> None:
        self._condition(node.iter, [*node.body, *node.orelse])

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Another code object."""


def _locals(frame: FrameType, lines: tuple[int, int]) -> Iterator[_Local]:
    """What the lines of a capture read of the function that captures."""
    code = frame.f_code
    tree = tree_of(code.co_filename)
    first, last = lines
    if tree is None or last == 1 << 30:
        return
    reads = _Reads()
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and node.lineno == first and node.end_lineno == last:
            for one in node.body:
                reads.visit(one)
    names = {**frame.f_globals, **locals_of(frame)}
    for text, root, steps, line, tested in reads.found:
        value = _step(names.get(root), steps)
        if type(value) in (int, float, bool, str):
            yield _Local(code, id(frame), text, root, steps, line, tested, value)


def _step(value: Any, steps: tuple[_Step, ...]) -> Any:
    for kind, name in steps:
        if kind == "attribute":
            value = getattr(value, "__dict__", {}).get(name)
        elif isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list | tuple) and isinstance(name, int) and name < len(value):
            value = value[name]
        else:
            return None
    return value


def _value(local: _Local, stack: Stack) -> Any:
    frame = stack.get(local.frame)
    if frame is None or frame.f_code is not local.code:
        return None
    names: Callable[[str], Any] = {**frame.f_globals, **locals_of(frame)}.get
    return _step(names(local.root), local.steps)
