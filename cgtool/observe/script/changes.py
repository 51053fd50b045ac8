"""Lines of a script that change a name, an attribute or an item, read from its source.

A value that differs between capture and replay was changed by some line that ran in between. Of
the lines that can have changed it, those count that lie on the way from the capture to the replay.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import NamedTuple

from cgtool.model.capture import Frame, Frames
from cgtool.observe.frames import line_of
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.source import statement_start, tree_of
from cgtool.observe.uses import CHANGE_FIRST, CHANGES

Target = tuple[str, str | int]
"""``("name", "scale")``, ``("attribute", "p")``, ``("item", "lr")``: the last step to what a line
changes; ``("call", "register_forward_hook")``: the function or method that it calls."""


class Part(NamedTuple):
    """An attribute or a key that leads to a memory."""

    target: Target
    owner: type
    """Of what it is a part."""
    is_direct: bool
    """It is the tensor itself, and not a container of tensors."""


_MODULE = "<module>"
_CONSTRUCTORS = frozenset(("__init__", "__new__", "__post_init__"))
_ADD = frozenset(("append", "extend", "insert", "appendleft", "add"))
_TAKE = frozenset(
    (
        "pop", "popleft", "popitem", "remove", "discard", "clear", "rotate", "sort", "reverse",
    )
)  # fmt: skip
"""Changes of a container that put nothing there."""
_REORDER = ("heappop", "heapify", "shuffle")
"""Functions that put nothing into their first argument, which they change."""
_REGISTER = frozenset(("register_buffer", "register_parameter", "add_module", "register_module"))
"""Methods of a module that give it an attribute."""
_CHANGE_IN_PLACE = CHANGES | {"fill", "put", "resize", "sort", "reverse", "add_module", "popitem"}


@dataclass(frozen=True)
class _Change:
    """One line that changes something."""

    target: Target
    line: int
    function: str
    """Qualified name of the function that the line is in."""
    scope: str
    """Where the name lives, if it is one: that function, or ``<module>`` for one that it declares
    ``global`` or ``nonlocal``."""
    in_place: bool
    """What it leads to is changed, and not bound again."""
    loop: tuple[int, int]
    """First and last line of the outermost loop around the line; (0, 0) for none."""
    resumed: bool = False
    """A `yield` of the function comes before it: what a context manager does at its end."""
    adds: bool = False
    """It adds to what is there: `n += 1`, `history.append(n)`."""
    puts: bool = True
    """What it assigns or puts there may hold a tensor: it is no constant, and not empty."""
    owner: str = ""
    """Of an attribute of `self`: the class of the method."""


class _Visitor(ast.NodeVisitor):
    def __init__(self, functions: set[str]) -> None:
        """``functions``: the names of those of the file, whose calls may return tensors."""
        self.changes: list[_Change] = []
        self._functions = functions
        self._function = _MODULE
        self._self, self._class = "", ""
        """Of a method: the name of its object, and its class."""
        self._puts = True
        self._is_class = False
        self._globals: set[str] = set()
        self._loop = (0, 0)
        self._resumed = False

    def _inner(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        outer = self._function, self._is_class, self._globals, self._loop, self._resumed
        method = self._self, self._class
        if self._is_class and not isinstance(node, ast.ClassDef):
            arguments = (*node.args.posonlyargs, *node.args.args)
            self._self, self._class = arguments[0].arg if arguments else "", self._function
        if self._function == _MODULE:
            self._function = node.name
        else:
            self._function += f"{'' if self._is_class else '.<locals>'}.{node.name}"
        self._is_class, self._globals, self._loop = isinstance(node, ast.ClassDef), set(), (0, 0)
        self._resumed = False
        for statement in node.body:
            self.visit(statement)
        self._function, self._is_class, self._globals, self._loop, self._resumed = outer
        self._self, self._class = method

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _inner  # noqa: N815

    def visit_Yield(self, node: ast.Yield) -> None:
        self.generic_visit(node)
        self._resumed = True

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self._globals.update(node.names)

    visit_Nonlocal = visit_Global  # noqa: N815

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

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        self._puts = not (node.value is None or self._is_empty(node.value))
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self.visit(target)
        self._puts = True
        if node.value is not None:
            self.visit(node.value)

    visit_AnnAssign = visit_Assign  # noqa: N815

    def visit_Delete(self, node: ast.Delete) -> None:
        self._puts = False
        self.generic_visit(node)
        self._puts = True

    def _is_empty(self, value: ast.expr) -> bool:
        """A constant, a container without items, a new object that was given nothing, or a
        container of such."""
        if isinstance(value, ast.List | ast.Tuple | ast.Set):
            return all(map(self._is_empty, value.elts))
        if isinstance(value, ast.Dict):
            return all(map(self._is_empty, value.values))
        if isinstance(value, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self._is_empty(value.elt)
        if isinstance(value, ast.DictComp):
            return self._is_empty(value.value)
        if isinstance(value, ast.Call):
            is_class = isinstance(value.func, ast.Name) and value.func.id not in self._functions
            return is_class and all(
                isinstance(each, ast.Constant)
                for each in (*value.args, *(keyword.value for keyword in value.keywords))
            )
        return isinstance(value, ast.Constant)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._change(node.target, in_place=True, adds=True)
        self.generic_visit(node.target)
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        called = getattr(function, "id", "") or getattr(function, "attr", "")
        if called in CHANGE_FIRST and node.args:
            self._puts = called not in _REORDER
            self._change(node.args[0], in_place=True)
            self._puts = True
        if isinstance(function, ast.Name):
            self._add("call", function.id, node)
            if function.id in ("setattr", "delattr"):
                self._change_named(node.args[1:2], node)
        elif isinstance(function, ast.Attribute):
            self._add("call", function.attr, node)
            if function.attr in _REGISTER:
                self._change_named(node.args[:1], node)
            if function.attr in _CHANGE_IN_PLACE or function.attr.endswith("_"):
                empty = function.attr in _TAKE or (node.args and self._is_empty(node.args[-1]))
                self._puts = not empty
                self._change(function.value, in_place=True, adds=function.attr in _ADD)
                if function.attr == "pop" and node.args:
                    self._change_item(function.value, node.args[0], node)
                self._puts = True
        self.generic_visit(node)

    def _change_named(self, names: list[ast.expr], node: ast.Call) -> None:
        for name in names:
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                self._add("attribute", name.value, node)

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
            value = target.value
            is_own = isinstance(value, ast.Name) and value.id == self._self != ""
            owner = self._class if is_own else ""
            self._add("attribute", target.attr, target, in_place=in_place, adds=adds, owner=owner)
        elif isinstance(target, ast.Subscript):
            self._change_item(target.value, target.slice, target, in_place=in_place, adds=adds)
            # What holds the item has changed too.
            self._change(target.value, in_place=True, adds=adds)
        elif (
            isinstance(target, ast.Call)
            and isinstance(target.func, ast.Attribute)
            and target.func.attr == "setdefault"
        ):
            self._change(target.func.value, in_place=True, adds=adds)

    def _change_item(
        self,
        container: ast.expr,
        key: ast.expr,
        node: ast.expr,
        *,
        in_place: bool = False,
        adds: bool = False,
    ) -> None:
        if isinstance(key, ast.Constant) and isinstance(key.value, str | int):
            is_object = ast.unparse(container).endswith(".__dict__") or (
                isinstance(container, ast.Call) and ast.unparse(container.func) == "vars"
            )
            kind = "attribute" if is_object else "item"
            self._add(kind, key.value, node, in_place=in_place, adds=adds)

    def _add(
        self,
        kind: str,
        key: str | int,
        node: ast.expr,
        *,
        in_place: bool = False,
        adds: bool = False,
        owner: str = "",
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
                self._puts,
                owner,
            )
        )


@cache
def _changes_of(file: str) -> dict[Target, list[_Change]]:
    tree = tree_of(file)
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    visitor = _Visitor({node.name for node in ast.walk(tree) if isinstance(node, functions)})
    visitor.visit(tree)
    changes: dict[Target, list[_Change]] = {}
    for change in visitor.changes:
        changes.setdefault(change.target, []).append(change)
    return changes


def put_at(file: str, container: Target, inside: Iterable[Part] = ()) -> Frames:
    """The first line of a file that puts something into a container, or into the parts of its items
    that lead to it, innermost first; else the only one that makes the container (``outs =
    list(results())``); () for none."""
    changes = _changes_of(file).get(container, [])
    puts = [change for change in changes if change.in_place] or changes[: len(changes) == 1]
    puts = [change for change in puts if change.puts] or puts
    is_filled = any(change.puts for change in puts)
    for part in inside:
        # Other dicts may have such a key.
        if part.target[0] == "attribute" or not is_filled:
            own = _puts_in(file, part)
            if own:
                return _place(file, min(own, key=lambda change: change.line))
    return _place(file, min(puts, key=lambda change: change.line)) if puts else ()


def _puts_in(file: str, part: Part) -> list[_Change]:
    """What gives an object a tensor that it was not constructed with."""
    classes = {"", *(each.__qualname__ for each in part.owner.__mro__)}
    return [
        change
        for change in _changes_of(file).get(part.target, ())
        if change.puts
        and change.in_place is not part.is_direct
        and change.owner in classes
        and change.function.rpartition(".")[2] not in _CONSTRUCTORS
    ]


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


def assigns(file: str, target: Target) -> bool:
    """Whether a line of a file binds a target."""
    return any(not change.in_place for change in _changes_of(file).get(target, ()))


def changed_at(
    targets: Iterable[Target],
    stack: Iterable[FrameType],
    graph: WatchedGraph,
    *,
    local_to: int | None = None,
    only_bound: bool = False,
    only_taken: bool = False,
    only_put: bool = False,
    owner: type = object,
) -> Frames:
    """The line that changed one of ``targets`` between a capture and now; () if that is not clear.

    ``stack``: the user's frames, innermost first. ``graph``: that of the capture.
    ``local_to``: identity of the frame whose local variable it is. ``only_bound``: it leads to
    another object now, so lines that change an object in place do not count. ``only_taken``: it is
    gone, so lines that put something there do not count. ``only_put``: only those do.
    ``owner``: the class of the object whose attribute it is; methods of other classes do not count.
    """
    classes = {"", *(each.__qualname__ for each in owner.__mro__)}
    frames = [frame for frame in stack if local_to in (None, id(frame))]
    for target in targets:
        changes = {
            file: [
                change
                for change in _changes_of(file).get(target, ())
                if not ((only_bound and change.in_place) or (only_taken and change.puts))
                if change.puts or not only_put
                if owner is object or change.owner in classes
            ]
            for file in {frame.f_code.co_filename for frame in frames}
        }
        found = _latest(target, changes, frames, graph, is_local=local_to is not None)
        if found:
            return found
    return ()


def ends_block(place: Frames) -> bool:
    """Whether a line that changes something runs at the end of a `with` statement."""
    return any(
        change.line == place[0].line
        and (change.resumed or change.function.endswith((".__exit__", ".__aexit__")))
        for changes in (_changes_of(place[0].file).values() if place else ())
        for change in changes
    )


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
        # Variables of functions around the captured one are shared with it.
        is_shared = target[1] in (*code.co_cellvars, *code.co_freevars)
        own = [
            change
            for change in changes[code.co_filename]
            if change.function == code.co_qualname
            and (is_local or target[0] != "name" or change.scope == _MODULE or is_shared)
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


def rebound_in(
    targets: Iterable[Target], functions: Iterable[tuple[str, str]], owner: type = object
) -> Frames:
    """The line in these functions, by file and name, that binds one of ``targets`` to another
    object; () if that is not clear. ``owner``: the class of the object whose attribute the first of
    the targets is; methods of other classes do not count."""
    functions, targets = {*functions}, [*targets]
    classes = {"", *(each.__qualname__ for each in owner.__mro__)}
    for number, target in enumerate(targets):
        places = [
            (file, change)
            for file, function in functions
            for change in _changes_of(file).get(target, ())
            if change.function == function
            and not change.in_place
            and (number > 0 or owner is object or change.owner in classes)
        ]
        if len(places) == 1:
            return _place(*places[0])
    return ()


def bound_after(targets: Iterable[Target], made: Frames, *, in_place: bool = False) -> Frames:
    """The line that binds one of ``targets`` to what was made at ``made``, in one of the functions
    that ran then; () if there is none. ``in_place``: that puts it into a target."""
    for target in targets:
        for index, frame in enumerate(made):
            lines = [
                change.line
                for change in _changes_of(frame.file).get(target, ())
                if change.function == frame.function
                and change.in_place is in_place
                and change.line >= statement_start(frame.file, frame.line)
            ]
            if lines:
                return (Frame(frame.file, min(lines), frame.function), *made[index + 1 :])
    return ()


def made_in(steps: Sequence[Target], files: Iterable[str]) -> set[str]:
    """The functions in these files that make what the steps lead to, other than the construction of
    what it belongs to."""
    kind, _ = steps[-1]
    places = [(steps[-1], False), *((step, True) for step in steps[-2:-1] if kind == "item")]
    return {
        change.function
        for file in files
        for target, in_place in places
        for change in _changes_of(file).get(target, ())
        if change.puts
        and change.in_place is in_place
        and change.function != _MODULE
        and change.function.rpartition(".")[2] not in _CONSTRUCTORS
    }


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
