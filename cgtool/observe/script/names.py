"""The names by which a script holds what a capture reads, and what those names hold later.

A path from a name to a tensor, or a name that captured lines read, is looked up again before each
replay. Neither keeps anything alive: objects are referenced weakly, locals by their frame while it
runs, and what is read of a frame is released at once.
"""

from __future__ import annotations

import ast
import dis
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from cgtool.model.capture import Frame
from cgtool.observe.frames import is_internal, line_of
from cgtool.observe.source import Step, name_chain, tree_of
from cgtool.observe.storage import key_of
from cgtool.torch_compat.private import buffers_of, parameters_of

_MISSING = object()
_ATTRIBUTES = 64
"""Attributes and items looked at in one object."""
_END_OF_FILE = 1 << 30

Stack = dict[int, FrameType]
"""Frames that run, by identity, innermost first."""


def stack_of(frame: FrameType | None) -> Stack:
    """The user's frames from ``frame`` outward."""
    stack: Stack = {}
    while frame is not None:
        if not is_internal(frame.f_code):
            stack[id(frame)] = frame
        frame = frame.f_back
    return stack


def locals_of(frame: FrameType) -> dict[str, Any]:
    """A copy, after which the frame holds no more than it did.

    In CPython before 3.13 ``f_locals`` of a function is a dict that stays with the frame, and would
    keep alive what the function deletes.
    """
    table = frame.f_locals
    copy = dict(table)
    if type(table) is dict and frame.f_code.co_flags & 1 and table is not frame.f_globals:
        table.clear()
    return copy


def _step(value: Any, kind: str, name: str | int) -> Any:
    """The attribute or item of a value, without running code of its class."""
    if kind == "attribute":
        return getattr(value, "__dict__", {}).get(name, _MISSING)
    if isinstance(value, dict):
        return value.get(name, _MISSING)
    if isinstance(value, list | tuple) and isinstance(name, int) and name < len(value):
        return value[name]
    return _MISSING


# Paths to tensors.


@dataclass(frozen=True)
class Scope:
    """Where a name is bound."""

    code: CodeType
    frame: int | None
    """Identity of the frame of a local; None for a global."""
    globals: dict[str, Any] | None

    def look_up(self, name: str, stack: Stack) -> Any:
        if self.globals is not None:
            return self.globals.get(name, _MISSING)
        frame = stack.get(self.frame or 0)
        if frame is None or frame.f_code is not self.code:
            return _MISSING
        return locals_of(frame).get(name, _MISSING)


@dataclass(frozen=True)
class Path:
    """One way from a name to a tensor."""

    kind: str
    """``name``, ``attribute``, ``item``, ``parameter``."""
    text: str
    """As it would be written: ``plan.idx``."""
    last: str | int
    """The name, attribute or key that is bound to the tensor."""
    scope: Scope | None
    look: Callable[[Stack], Any]
    """What the path leads to now."""
    module: weakref.ref[torch.nn.Module] | None = None


class Modules:
    """Parameters and buffers of the modules that the code around a capture can name."""

    def __init__(self) -> None:
        self._roots: set[int] = set()
        self._where: dict[int, tuple[weakref.ref[torch.nn.Module], str, str]] = {}

    def add(self, name: str, root: torch.nn.Module) -> None:
        if id(root) in self._roots:
            return
        for prefix, module in root.named_modules():
            if id(module) in self._roots:
                continue
            self._roots.add(id(module))
            for table in (parameters_of(module), buffers_of(module)):
                for own, tensor in table.items():
                    key = None if tensor is None else key_of(tensor)
                    if key is not None:
                        text = ".".join(part for part in (name, prefix, own) if part)
                        self._where.setdefault(key, (weakref.ref(module), own, text))

    def find(self, key: int) -> Path | None:
        """The path to the parameter or buffer with this storage."""
        if key not in self._where:
            return None
        reference, own, text = self._where[key]

        def look(_stack: Stack) -> Any:
            module = reference()
            if module is None:
                return _MISSING
            tensor = parameters_of(module).get(own, buffers_of(module).get(own))
            return _MISSING if tensor is None else tensor

        return Path("parameter", text, own, None, look, reference)


def paths_to(key: int, frame: FrameType | None, modules: Modules) -> list[Path]:
    """The names by which the running code can reach a storage, the innermost frame's first."""
    paths: list[Path] = []
    visited: set[tuple[int, str]] = set()
    while frame is not None:
        code = frame.f_code
        if not is_internal(code):
            for name, value, is_global in _names_of(frame):
                owner = id(frame.f_globals) if is_global else id(frame)
                if (owner, name) in visited:
                    continue
                visited.add((owner, name))
                if isinstance(value, torch.nn.Module):
                    modules.add(name, value)
                elif is_global:
                    paths += _through(name, value, key, Scope(code, None, frame.f_globals))
                else:
                    paths += _through(name, value, key, Scope(code, id(frame), None))
        frame = frame.f_back
    parameter = modules.find(key)
    return [parameter] if parameter is not None else paths


def _names_of(frame: FrameType) -> Iterator[tuple[str, Any, bool]]:
    """(name, value, is global) of all that the code of a frame can name."""
    code = frame.f_code
    if code.co_flags & 1:
        for name, value in locals_of(frame).items():
            yield name, value, False
    for name in code.co_names:
        if name in frame.f_globals:
            yield name, frame.f_globals[name], True


def _through(name: str, value: Any, key: int, scope: Scope) -> Iterator[Path]:
    """The paths from one name to a storage: the value itself, or what is directly inside it."""
    if _has_storage(value, key):
        yield Path("name", name, name, scope, lambda stack: scope.look_up(name, stack))
        return
    for kind, inner in _inside(value, key):
        text = f"{name}.{inner}" if kind == "attribute" else f"{name}[{inner!r}]"
        owner = _weakly(value) if scope.globals is None else None

        def look(
            stack: Stack,
            kind: str = kind,
            inner: str | int = inner,
            owner: Callable[[], Any] | None = owner,
        ) -> Any:
            # Objects outlive the frames that name them.
            container = owner() if owner is not None else scope.look_up(name, stack)
            return _MISSING if container is None else _step(container, kind, inner)

        yield Path(kind, text, inner, scope, look)


def _has_storage(value: Any, key: int) -> bool:
    return isinstance(value, torch.Tensor) and key_of(value) == key


def _inside(value: Any, key: int) -> Iterator[tuple[str, str | int]]:
    """(kind, attribute or key) under which an object or container holds the storage."""
    if isinstance(value, dict):
        for name, item in list(value.items())[:_ATTRIBUTES]:
            if isinstance(name, str | int) and _has_storage(item, key):
                yield "item", name
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value[:_ATTRIBUTES]):
            if _has_storage(item, key):
                yield "item", index
    elif not isinstance(value, torch.nn.Module | torch.Tensor | ModuleType | type):
        table = getattr(value, "__dict__", None) if not callable(value) else None
        if isinstance(table, dict):
            for name, item in list(table.items())[:_ATTRIBUTES]:
                if _has_storage(item, key):
                    yield "attribute", name


def _weakly(value: Any) -> Callable[[], Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:
        return None


# Lines that bind a name.


def binding_of(path: Path, stack: Stack, outer_frames: dict[int, int]) -> tuple[Frame, ...]:
    """The line that bound the path to another tensor since the capture; () if that is not clear.

    ``outer_frames`` are those of ``WatchedGraph``.
    """
    if path.scope is None or path.kind == "item":
        return ()
    name, attribute = str(path.last), path.kind == "attribute"
    codes: list[tuple[CodeType, int, int]] = []
    for frame in stack.values():
        same = path.scope.frame is None or id(frame) == path.scope.frame or attribute
        if same and frame.f_globals is not None:
            codes.append((frame.f_code, outer_frames.get(id(frame), -1), frame.f_lasti))
    for code, after, now in codes:
        line = _bound_at(code, name, after, now, attribute)
        if line is not None:
            return (Frame(code.co_filename, line, code.co_qualname),)
    for code, _, _ in codes[-1:]:
        for inner in _nested(code):
            # A local of another function is another variable.
            if not attribute and name in inner.co_varnames:
                continue
            line = _bound_at(inner, name, -1, _END_OF_FILE, attribute)
            if line is not None:
                return (Frame(inner.co_filename, line, inner.co_qualname),)
    return ()


_STORES = frozenset(("STORE_NAME", "STORE_FAST", "STORE_GLOBAL", "STORE_DEREF"))


def _bound_at(code: CodeType, name: str, after: int, now: int, attribute: bool) -> int | None:
    """The line that most likely bound ``name`` between two offsets of one code object.

    ``after`` is where the capture began, ``now`` where the replay is called: the last binding
    before the replay, or, in a loop, the last one behind it.
    """
    kinds = frozenset(("STORE_ATTR",)) if attribute else _STORES
    stores = [
        instruction.offset
        for instruction in dis.get_instructions(code)
        if instruction.opname in kinds and instruction.argval == name
    ]
    before = [offset for offset in stores if after < offset <= now]
    behind = [offset for offset in stores if offset > now]
    offsets = before or behind
    return line_of((code, offsets[-1])) if offsets else None


def _nested(code: CodeType) -> Iterator[CodeType]:
    """The code objects of the functions and classes inside another one."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


# Lines of a capture.


def region_of(frame: FrameType) -> tuple[int, int]:
    """First and last line of the ``with`` statement that the frame is entering; if it is entering
    none, its line and the end of the file."""
    line = line_of((frame.f_code, frame.f_lasti))
    tree = tree_of(frame.f_code.co_filename)
    region = (line, _END_OF_FILE)
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.With):
            continue
        first = node.body[0].lineno
        if node.lineno <= line < first or node.lineno == line == first:
            region = (node.lineno, node.end_lineno or line)
    return region


@dataclass(frozen=True)
class CapturedName:
    """A name, with the attributes and constant keys behind it, that captured lines of a function
    read and that held a Python number, flag or string."""

    code: CodeType
    frame: int
    """Identity of the frame, which goes on after the capture."""
    text: str
    root: str
    steps: tuple[Step, ...]
    line: int
    tested: bool
    """Part of a condition, or of what a loop runs over."""
    value: Any
    """At the capture."""

    def look_up(self, stack: Stack) -> Any:
        """The value now; None once the frame has ended."""
        frame = stack.get(self.frame)
        if frame is None or frame.f_code is not self.code:
            return None
        return _follow({**frame.f_globals, **locals_of(frame)}.get(self.root), self.steps)


def captured_names(frame: FrameType, lines: tuple[int, int]) -> Iterator[CapturedName]:
    """What the lines of a capture (``region_of``) read of the function that captures."""
    code = frame.f_code
    tree = tree_of(code.co_filename)
    first, last = lines
    if tree is None or last == _END_OF_FILE:
        return
    reads = _Reads()
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and node.lineno == first and node.end_lineno == last:
            for statement in node.body:
                reads.visit(statement)
    names = {**frame.f_globals, **locals_of(frame)}
    for text, root, steps, line, tested in reads.names:
        value = _follow(names.get(root), steps)
        if type(value) in (int, float, bool, str):
            yield CapturedName(code, id(frame), text, root, steps, line, tested, value)


def _follow(value: Any, steps: tuple[Step, ...]) -> Any:
    for kind, name in steps:
        value = _step(value, kind, name)
    return None if value is _MISSING else value


class _Reads(ast.NodeVisitor):
    """Names with their attributes and constant keys, where they are read."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str, tuple[Step, ...], int, bool]] = []
        """(text, root, steps, line, tested)."""
        self._tested = False

    def _read(self, node: ast.Attribute | ast.Subscript | ast.Name) -> None:
        chain = name_chain(node)
        if chain is None:
            self.generic_visit(node)
        elif isinstance(node.ctx, ast.Load):
            self.names.append((ast.unparse(node), *chain, node.lineno, self._tested))

    visit_Attribute = visit_Subscript = visit_Name = _read  # noqa: N815

    def _condition(self, test: ast.expr, rest: list[Any]) -> None:
        self._tested = True
        self.visit(test)
        self._tested = False
        for node in rest:
            self.visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._condition(node.test, [*node.body, *node.orelse])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test, [node.body, node.orelse])

    def visit_For(self, node: ast.For) -> None:
        self._condition(node.iter, [*node.body, *node.orelse])

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Another code object."""
