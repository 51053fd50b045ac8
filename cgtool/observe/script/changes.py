"""Lines of a script that change a name, an attribute or an item, read from its source.

A value that differs between capture and replay was changed by some line that ran in between. Of
the lines that can have changed it, those count that lie on the way from the capture to the replay.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import FrameType

from cgtool.model.capture import Frame, Frames
from cgtool.observe.frames import line_of
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.source import tree_of
from cgtool.observe.uses import CHANGES

Target = tuple[str, str | int]
"""``("name", "scale")``, ``("attribute", "p")``, ``("item", "lr")``: the last step to what a line
changes; ``("call", "register_forward_hook")``: the function or method that it calls."""

_MODULE = "<module>"
_CONSTRUCTORS = frozenset(("__init__", "__new__", "__post_init__"))
_ADD = frozenset(("append", "extend", "insert", "appendleft", "add"))
_CHANGE_IN_PLACE = CHANGES | {"fill", "put", "resize", "sort", "reverse", "add_module", "popitem"}


@dataclass(frozen=True)
class _Change:
    """One line that changes something."""

    target: Target
    line: int
    function: str
    """Qualified name of the function that the line is in."""
    scope: str
    """Where the name lives, if it is one: that function or ``<module>``."""
    in_place: bool
    """What it leads to is changed, and not bound again."""
    loop: tuple[int, int]
    """First and last line of the outermost loop around the line; (0, 0) for none."""
    resumed: bool = False
    """A `yield` of the function comes before it: what a context manager does at its end."""
    adds: bool = False
    """It adds to what is there: `n += 1`, `history.append(n)`."""


class _Visitor(ast.NodeVisitor):
    def __init__(self) -> None:
        self.changes: list[_Change] = []
        self._function = _MODULE
        self._is_class = False
        self._globals: set[str] = set()
        self._loop = (0, 0)
        self._resumed = False

    def _inner(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        outer = self._function, self._is_class, self._globals, self._loop, self._resumed
        if self._function == _MODULE:
            self._function = node.name
        else:
            self._function += f"{'' if self._is_class else '.<locals>'}.{node.name}"
        self._is_class, self._globals, self._loop = isinstance(node, ast.ClassDef), set(), (0, 0)
        self._resumed = False
        for statement in node.body:
            self.visit(statement)
        self._function, self._is_class, self._globals, self._loop, self._resumed = outer

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _inner  # noqa: N815

    def visit_Yield(self, node: ast.Yield) -> None:
        self.generic_visit(node)
        self._resumed = True

    def visit_Global(self, node: ast.Global) -> None:
        self._globals.update(node.names)

    def _visit_loop(self, node: ast.For | ast.While) -> None:
        outer = self._loop
        if outer == (0, 0):
            self._loop = node.lineno, node.end_lineno or node.lineno
        self.generic_visit(node)
        self._loop = outer

    visit_For = visit_While = _visit_loop  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Its names are its own."""
        for inner in (node.iter, *node.ifs):
            self.visit(inner)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._change(node.target, in_place=True, adds=True)
        self.generic_visit(node.target)
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Name):
            self._add("call", function.id, node)
            if function.id == "setattr" and len(node.args) > 1:
                name = node.args[1]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    self._add("attribute", name.value, node)
        elif isinstance(function, ast.Attribute):
            self._add("call", function.attr, node)
            if function.attr in _CHANGE_IN_PLACE or function.attr.endswith("_"):
                self._change(function.value, in_place=True, adds=function.attr in _ADD)
        self.generic_visit(node)

    def _visit_target(self, node: ast.Name | ast.Attribute | ast.Subscript) -> None:
        """Whatever statement it is the target of."""
        if not isinstance(node.ctx, ast.Load):
            self._change(node)
        self.generic_visit(node)

    visit_Name = visit_Attribute = visit_Subscript = _visit_target  # noqa: N815

    def _change(self, target: ast.expr, *, in_place: bool = False, adds: bool = False) -> None:
        if isinstance(target, ast.Name):
            self._add("name", target.id, target, in_place=in_place, adds=adds)
        elif isinstance(target, ast.Attribute):
            self._add("attribute", target.attr, target, in_place=in_place, adds=adds)
        elif isinstance(target, ast.Subscript):
            key = target.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str | int):
                self._add("item", key.value, target, in_place=in_place, adds=adds)
            # What holds the item has changed too.
            self._change(target.value, in_place=True, adds=adds)

    def _add(
        self,
        kind: str,
        key: str | int,
        node: ast.expr,
        *,
        in_place: bool = False,
        adds: bool = False,
    ) -> None:
        if self._is_class:
            return
        scope = _MODULE if key in self._globals else self._function
        self.changes.append(
            _Change(
                (kind, key),
                node.lineno,
                self._function,
                scope,
                in_place,
                self._loop,
                self._resumed,
                adds,
            )
        )


@cache
def _changes_of(file: str) -> dict[Target, list[_Change]]:
    visitor = _Visitor()
    visitor.visit(tree_of(file))
    changes: dict[Target, list[_Change]] = {}
    for change in visitor.changes:
        changes.setdefault(change.target, []).append(change)
    return changes


def put_at(file: str, container: Target) -> Frames:
    """The first line of a file that puts something into a container, else the only one that makes
    the container (``outs = list(results())``); () for none."""
    changes = _changes_of(file).get(container, [])
    puts = [change for change in changes if change.in_place] or changes[: len(changes) == 1]
    return _place(file, min(puts, key=lambda change: change.line)) if puts else ()


def adds_elsewhere(target: Target, file: str, counted_in: Iterable[tuple[str, int, int]]) -> bool:
    """Whether a line of a file adds to a target, other than lines of captured code.

    ``counted_in``: the functions that were captured, by name, and their lines.
    """
    return any(
        change.adds
        and not any(
            change.function == function and first <= change.line <= last
            for function, first, last in counted_in
        )
        for change in _changes_of(file).get(target, ())
    )


def changed_at(
    targets: Iterable[Target],
    stack: Iterable[FrameType],
    graph: WatchedGraph,
    *,
    local_to: int | None = None,
    only_bound: bool = False,
) -> Frames:
    """The line that changed one of ``targets`` between a capture and now; () if that is not clear.

    ``stack``: the user's frames, innermost first. ``graph``: that of the capture.
    ``local_to``: identity of the frame whose local variable it is. ``only_bound``: it leads to
    another object now, so lines that change an object in place do not count.
    """
    frames = [frame for frame in stack if local_to in (None, id(frame))]
    for target in targets:
        changes = {
            file: [
                change
                for change in _changes_of(file).get(target, ())
                if not (only_bound and change.in_place)
            ]
            for file in {frame.f_code.co_filename for frame in frames}
        }
        found = _latest(target, changes, frames, graph, is_local=local_to is not None)
        if found:
            return found
    return ()


def _latest(
    target: Target,
    changes: dict[str, list[_Change]],
    frames: list[FrameType],
    graph: WatchedGraph,
    *,
    is_local: bool,
) -> Frames:
    """``changes`` of the target, by file."""
    repeated: list[Frames] = []
    for frame in frames:
        code = frame.f_code
        own = [
            change
            for change in changes[code.co_filename]
            if change.function == code.co_qualname
            and (is_local or target[0] != "name" or change.scope == _MODULE)
        ]
        now = line_of((code, frame.f_lasti))
        offset = graph.outer_frames.get(id(frame))
        after = 0 if offset is None else line_of((code, offset))
        on_the_way = [change for change in own if after < change.line <= now]
        if on_the_way:
            return _place(code.co_filename, on_the_way[-1])
        around = [change for change in own if change.loop[0] <= now <= change.loop[1]]
        if around:
            repeated.append(_place(code.co_filename, around[-1]))
    if is_local:
        return repeated[0] if repeated else ()
    running = {(frame.f_code.co_filename, frame.f_code.co_qualname) for frame in frames}
    called = [
        (file, change)
        for file, change in _in_functions(changes, running)
        if not _is_before(file, change, graph.frames)
    ]
    # What a context manager does at its end is undone by then, or is what it restores.
    called = [each for each in called if not each[1].resumed] or called
    if len({(file, change.line) for file, change in called}) == 1:
        return _place(*called[0])
    return repeated[0] if repeated else ()


def _is_before(file: str, change: _Change, captured_at: Frames) -> bool:
    """Whether the line ran on the way to the capture, in a function that has returned since."""
    return any(
        (frame.file, frame.function) == (file, change.function)
        and change.line <= frame.line
        and not change.loop[0] <= frame.line <= change.loop[1]
        for frame in captured_at
    )


def rebound_in(targets: Iterable[Target], functions: Iterable[tuple[str, str]]) -> Frames:
    """The line in these functions, by file and name, that binds one of ``targets`` to another
    object; () if that is not clear."""
    functions = list(functions)
    for target in targets:
        places = [
            (file, change)
            for file, function in functions
            for change in _changes_of(file).get(target, ())
            if change.function == function and not change.in_place
        ]
        if len(places) == 1:
            return _place(*places[0])
    return ()


def _in_functions(
    changes: dict[str, list[_Change]], running: set[tuple[str, str]]
) -> Iterator[tuple[str, _Change]]:
    """Lines of functions that were called and have returned."""
    for file, of_file in changes.items():
        for change in of_file:
            is_global = change.target[0] != "name" or change.scope == _MODULE
            name = change.function.rpartition(".")[2]
            if change.function == _MODULE or name in _CONSTRUCTORS or not is_global:
                continue
            if (file, change.function) not in running:
                yield file, change


def _place(file: str, change: _Change) -> Frames:
    return (Frame(file, change.line, change.function),)
