"""By which names a script holds the tensors that a capture reads, and what those names hold later.

A path is looked up again before each replay. It keeps nothing alive: objects are referenced weakly,
locals by their frame while it runs, and what is read of a frame is let go at once.
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
from cgtool.observe.source import tree_of
from cgtool.observe.storage import storage_of
from cgtool.torch_compat.private import buffers_of, parameters_of, storage_key

_MISSING = object()
_ATTRIBUTES = 64
"""Attributes and items looked at in one object."""


@dataclass(frozen=True)
class Scope:
    """Where a name lives."""

    code: CodeType
    frame: int | None
    """Identity of the frame of a local; None for a global."""
    names: dict[str, Any] | None
    """The globals."""


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
    module: weakref.ref[torch.nn.Module] | None = None


Stack = dict[int, FrameType]
"""Frames that run, by identity."""


def stack_of(frame: FrameType | None) -> Stack:
    """The frames from one outward, the user's only."""
    found: Stack = {}
    while frame is not None:
        if not is_internal(frame.f_code):
            found[id(frame)] = frame
        frame = frame.f_back
    return found


def locals_of(frame: FrameType) -> dict[str, Any]:
    """A copy, after which the frame holds no more than it did.

    In CPython before 3.13 ``f_locals`` of a function is a dict that stays with the frame, and would
    keep alive what the function deletes.
    """
    table = frame.f_locals
    found = dict(table)
    if type(table) is dict and frame.f_code.co_flags & 1 and table is not frame.f_globals:
        table.clear()
    return found


def _names_of(frame: FrameType) -> Iterator[tuple[str, Any, bool]]:
    """(name, value, is global) of all that the code of a frame can name."""
    code = frame.f_code
    if code.co_flags & 1:
        for name, value in locals_of(frame).items():
            yield name, value, False
    for name in code.co_names:
        if name in frame.f_globals:
            yield name, frame.f_globals[name], True


def _holds(value: Any, key: int) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    storage = storage_of(value)
    return storage is not None and storage_key(storage) == key


def _inside(value: Any, key: int) -> Iterator[tuple[str, str | int]]:
    """(kind, attribute or key) under which an object or container holds the storage."""
    if isinstance(value, dict):
        for name, one in list(value.items())[:_ATTRIBUTES]:
            if isinstance(name, str | int) and _holds(one, key):
                yield "item", name
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value[:_ATTRIBUTES]):
            if _holds(one, key):
                yield "item", index
    elif not isinstance(value, torch.nn.Module | torch.Tensor | ModuleType | type):
        table = getattr(value, "__dict__", None) if not callable(value) else None
        if isinstance(table, dict):
            for name, one in list(table.items())[:_ATTRIBUTES]:
                if _holds(one, key):
                    yield "attribute", name


def _step(value: Any, kind: str, name: str | int) -> Any:
    if kind == "attribute":
        return getattr(value, "__dict__", {}).get(name, _MISSING)
    if isinstance(value, dict):
        return value.get(name, _MISSING)
    if isinstance(value, list | tuple) and isinstance(name, int) and name < len(value):
        return value[name]
    return _MISSING


def _root(scope: Scope, name: str) -> Callable[[Stack], Any]:
    if scope.names is not None:
        names = scope.names
        return lambda _stack: names.get(name, _MISSING)

    def local(stack: Stack) -> Any:
        frame = stack.get(scope.frame or 0)
        if frame is None or frame.f_code is not scope.code:
            return _MISSING
        return locals_of(frame).get(name, _MISSING)

    return local


def _weakly(value: Any) -> Callable[[], Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:
        return None


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
                    storage = None if tensor is None else storage_of(tensor)
                    if storage is not None:
                        parts = [part for part in (name, prefix, own) if part]
                        self._where.setdefault(
                            storage_key(storage), (weakref.ref(module), own, ".".join(parts))
                        )

    def find(self, key: int) -> Path | None:
        known = self._where.get(key)
        if known is None:
            return None
        module, own, text = known

        def look(_stack: Stack) -> Any:
            alive = module()
            if alive is None:
                return _MISSING
            found = parameters_of(alive).get(own, buffers_of(alive).get(own))
            return _MISSING if found is None else found

        return Path("parameter", text, own, None, look, module)


def paths_to(key: int, frame: FrameType | None, modules: Modules) -> list[Path]:
    """The names by which the running code can reach a storage, the innermost frame's first."""
    found: list[Path] = []
    seen: set[tuple[int, str]] = set()
    while frame is not None:
        code = frame.f_code
        if not is_internal(code):
            for name, value, is_global in _names_of(frame):
                owner = id(frame.f_globals) if is_global else id(frame)
                if (owner, name) in seen:
                    continue
                seen.add((owner, name))
                if isinstance(value, torch.nn.Module):
                    modules.add(name, value)
                    continue
                scope = Scope(
                    code,
                    None if is_global else id(frame),
                    frame.f_globals if is_global else None,
                )
                found += _through(name, value, key, scope)
        frame = frame.f_back
    parameter = modules.find(key)
    return [parameter] if parameter is not None else found


def _through(name: str, value: Any, key: int, scope: Scope) -> Iterator[Path]:
    root = _root(scope, name)
    if _holds(value, key):
        yield Path("name", name, name, scope, root)
        return
    for kind, inner in _inside(value, key):
        text = f"{name}.{inner}" if kind == "attribute" else f"{name}[{inner!r}]"
        held = _weakly(value) if scope.names is None else None

        def look(
            stack: Stack,
            kind: str = kind,
            inner: str | int = inner,
            held: Callable[[], Any] | None = held,
        ) -> Any:
            # Objects outlive the frames that name them.
            owner = held() if held is not None else root(stack)
            return _MISSING if owner is None or owner is _MISSING else _step(owner, kind, inner)

        yield Path(kind, text, inner, scope, look)


def binding_of(path: Path, stack: Stack, outer: dict[int, int]) -> tuple[Frame, ...]:
    """The line that bound the path to another tensor since the capture; () when it is not clear."""
    if path.scope is None:
        return ()
    name = str(path.last)
    attribute = path.kind == "attribute"
    if path.kind == "item":
        return ()
    codes: list[tuple[CodeType, int, int]] = []
    for frame in stack.values():
        same = path.scope.frame is None or id(frame) == path.scope.frame or attribute
        if same and frame.f_globals is not None:
            codes.append((frame.f_code, outer.get(id(frame), -1), frame.f_lasti))
    for code, after, now in codes:
        line = bound_at(code, name, after, now, attribute)
        if line is not None:
            return (Frame(code.co_filename, line, code.co_qualname),)
    for code, _, _ in codes[-1:]:
        for inner in nested(code):
            line = bound_at(inner, name, -1, 1 << 30, attribute)
            if line is not None and inner is not code and _binds(inner, name, attribute):
                return (Frame(inner.co_filename, line, inner.co_qualname),)
    return ()


def _binds(code: CodeType, name: str, attribute: bool) -> bool:
    # A local of another function is another variable.
    return attribute or name not in code.co_varnames


def region_of(frame: FrameType) -> tuple[int, int]:
    """First and last line of the ``with`` statement that the frame is entering; the line itself to
    the end of the file when it is entering none."""
    line = line_of((frame.f_code, frame.f_lasti))
    tree = tree_of(frame.f_code.co_filename)
    found = (line, 1 << 30)
    if tree is None:
        return found
    for node in ast.walk(tree):
        if (isinstance(node, ast.With) and node.lineno <= line < node.body[0].lineno) or (
            isinstance(node, ast.With) and node.lineno == line == node.body[0].lineno
        ):
            found = (node.lineno, node.end_lineno or line)
    return found


_STORES = frozenset(("STORE_NAME", "STORE_FAST", "STORE_GLOBAL", "STORE_DEREF"))


def _stores(code: CodeType, name: str, kinds: frozenset[str]) -> list[tuple[int, int]]:
    """(offset, line) of each place that binds a name."""
    found: list[tuple[int, int]] = []
    for one in dis.get_instructions(code):
        if one.opname in kinds and one.argval == name:
            found.append((one.offset, line_of((code, one.offset))))
    return found


def bound_at(
    code: CodeType, name: str, after: int, now: int, attribute: bool = False
) -> int | None:
    """The line that most likely bound ``name`` between two offsets of one code object.

    ``after`` is where the capture began, ``now`` where the replay is called: the last binding
    before the replay, or, in a loop, the last one behind it.
    """
    stores = _stores(code, name, frozenset(("STORE_ATTR",)) if attribute else _STORES)
    later = [one for one in stores if after < one[0] <= now]
    if later:
        return later[-1][1]
    behind = [one for one in stores if one[0] > now]
    if behind:
        return behind[-1][1]
    return None


def nested(code: CodeType) -> Iterator[CodeType]:
    """A code object and those of the functions and classes in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from nested(one)
