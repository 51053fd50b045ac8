"""Values on the host that code reads; a graph keeps those of its capture.

The source of a function gives the names that it uses (``self.n``, ``config["lr"]``, a global), and
its frame the objects behind them. ``HostReads.snapshot`` looks all of them up; the difference of
two snapshots says which values changed, and which line reads them.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cgtool.model.capture import Frame
from cgtool.observe.frames import is_internal
from cgtool.observe.source import Use, uses_of
from cgtool.observe.tensors import has_shape, on_host
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import (
    MODULE_TABLES,
    children_of,
    no_torch_function,
    version_of_tensor,
)

_SMALL = 64
"""CPU tensors of up to this many elements are compared by value."""
_HELPERS = 4
"""How deep calls of helpers are followed."""
MISSING = object()
"""There is no such name, attribute or item."""


@dataclass(frozen=True)
class Value:
    """A value, reduced to what a comparison needs."""

    kind: str
    """``number`` (or text, or None), ``host tensor``, ``tensor``, ``size`` (of a container)."""
    content: Any
    shown: str


@dataclass(frozen=True)
class Watched:
    """One name in one function, and how to look it up again."""

    use: Use
    frame: Frame
    """The line that uses it."""
    root: Callable[[], Any]
    owner: int
    """Identity of the root object: the same line serves many modules."""


@dataclass(frozen=True)
class Change:
    """A value that differs between two snapshots."""

    watched: Watched
    before: Value
    after: Value

    @property
    def text(self) -> str:
        return f"{self.watched.use.text}: {self.before.shown}, then {self.after.shown}"


Snapshot = dict[int, Value]
"""By index into ``HostReads.watched``."""


class HostReads:
    """The values that the added frames read."""

    def __init__(self) -> None:
        self.watched: list[Watched] = []
        self._known: set[tuple[int, int]] = set()
        self._kept: list[Any] = []
        """Keeps roots without weak references (dicts, lists) and code objects alive."""

    def add_frame(self, frame: types.FrameType) -> None:
        """Add the names that a function of the user uses."""
        code = frame.f_code
        first = code.co_varnames[0] if code.co_argcount else None
        owner = id(frame.f_locals.get(first)) if first else 0
        if (id(code), owner) not in self._known:
            self._known.add((id(code), owner))
            self._kept.append(code)
            self._add_code(code, frame.f_globals, dict(frame.f_locals), _HELPERS)

    def _add_code(
        self, code: types.CodeType, names: dict[str, Any], values: dict[str, Any], depth: int
    ) -> None:
        cells: dict[str, types.CellType] | None = None
        for use in uses_of(code):
            if use.scope == "global":
                if use.root not in names:
                    continue
                root: Callable[[], Any] = partial(names.get, use.root, MISSING)
                owner = id(names)
            elif use.scope == "argument":
                value = values.get(use.root, MISSING)
                if value is MISSING or isinstance(value, torch.Tensor):
                    # Tensor arguments are the static inputs.
                    continue
                root, owner = self._reference(value), id(value)
            else:
                if cells is None:
                    cells = _cells(code)
                cell = cells.get(use.root)
                if cell is None:
                    continue
                root, owner = _content_of(cell), id(cell)
            if use.called and depth:
                self._follow(resolve(root(), use.steps), depth - 1)
            frame = Frame(code.co_filename, use.line, code.co_qualname)
            self.watched.append(Watched(use, frame, root, owner))

    def _follow(self, function: Any, depth: int) -> None:
        """Add what a helper of the user reads, which may run no op."""
        values: dict[str, Any] = {}
        if isinstance(function, types.MethodType):
            first = function.__func__.__code__.co_varnames[:1]
            values = dict.fromkeys(first, function.__self__)
            function = function.__func__
        if not isinstance(function, types.FunctionType) or is_internal(function.__code__):
            return
        if "-packages/" in function.__code__.co_filename:
            return
        key = id(function.__code__), id(next(iter(values.values()), None)) if values else 0
        if key not in self._known:
            self._known.add(key)
            self._kept.append(function.__code__)
            self._add_code(function.__code__, function.__globals__, values, depth)

    def _reference(self, value: Any) -> Callable[[], Any]:
        try:
            return weakref.ref(value)
        except TypeError:
            self._kept.append(value)
            return lambda: value

    def snapshot(self) -> Snapshot:
        """The value of every name now."""
        snapshot: Snapshot = {}
        for index, watched in enumerate(self.watched):
            value = _reduce(resolve(watched.root(), watched.use.steps))
            if value is not None:
                snapshot[index] = value
        return snapshot

    def changes(self, before: Snapshot, after: Snapshot) -> Iterator[Change]:
        """The values that differ, each line and name once, in the order they were added."""
        reported: set[tuple[str, int, str, int]] = set()
        for index, old in before.items():
            new = after.get(index)
            if new is None or (new.kind == old.kind and new.content == old.content):
                continue
            watched = self.watched[index]
            key = watched.frame.file, watched.frame.line, watched.use.text, watched.owner
            if key not in reported:
                reported.add(key)
                yield Change(watched, old, new)


def _content_of(cell: types.CellType) -> Callable[[], Any]:
    def content() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING

    return content


def _cells(code: types.CodeType) -> dict[str, types.CellType]:
    """The cells of a function that runs this code, which frames do not have."""
    for function in gc.get_referrers(code):
        if isinstance(function, types.FunctionType) and function.__code__ is code:
            return dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
    return {}


def resolve(value: Any, steps: tuple[tuple[str, str | int], ...]) -> Any:
    """Follow attributes and items without running the user's code."""
    for kind, name in steps:
        if value is None or value is MISSING:
            return MISSING
        if kind == "item":
            value = _item(value, name)
        else:
            value = _attribute(value, str(name))
    return value


def _item(value: Any, key: str | int) -> Any:
    if isinstance(value, dict):
        return dict.get(value, key, MISSING)
    if isinstance(value, list | tuple) and isinstance(key, int):
        return value[key] if -len(value) <= key < len(value) else MISSING
    if isinstance(value, torch.nn.ModuleList | torch.nn.Sequential) and isinstance(key, int):
        return children_of(value).get(str(key), MISSING)
    return MISSING


def _attribute(value: Any, name: str) -> Any:
    try:
        table = object.__getattribute__(value, "__dict__")
    except Exception:  # slots, builtins, and objects whose attributes raise
        table = None
    if isinstance(table, dict | types.MappingProxyType):
        if name in table:
            return table[name]
        if isinstance(value, torch.nn.Module):
            for part in MODULE_TABLES:
                inner = table.get(part) or {}
                if name in inner:
                    return inner[name]
    if isinstance(value, type | types.ModuleType):
        return MISSING
    for base in type(value).__mro__:
        member = base.__dict__.get(name, MISSING)
        if isinstance(member, types.FunctionType):
            return types.MethodType(member, value)
        if isinstance(member, types.MemberDescriptorType):
            try:
                return member.__get__(value)
            except AttributeError:
                return MISSING
        if isinstance(member, bool | int | float | str):
            return member
    return MISSING


def _reduce(value: Any) -> Value | None:
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        shown = repr(value)
        return Value("number", value, shown if len(shown) < 60 else shown[:57] + "...")
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, list | tuple | dict | set | frozenset):
        is_short = isinstance(value, list | tuple) and 0 < len(value) <= _SMALL
        if is_short and all(type(item) in (bool, int, float, str) for item in value):
            return Value("number", tuple(value), repr(value))
        return Value("size", len(value), f"{len(value)} items")
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and hasattr(value, "tobytes") and getattr(value, "size", 99) <= _SMALL:
        return Value("number", (str(value.dtype), value.tobytes()), str(value)[:60])
    return None


def _tensor(value: torch.Tensor) -> Value | None:
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not has_shape(value):
        return None
    shape = tuple(value.shape)
    with unobserved(), no_torch_function():
        if on_host(value):
            content = (
                value.detach().tolist() if value.numel() <= _SMALL else version_of_tensor(value)
            )
            return Value("host tensor", (shape, repr(content)), repr(content)[:60])
        address = value.data_ptr()
    return Value("tensor", (shape, address), f"{list(shape)} at {address:#x}")
