"""The names by which a script holds what a capture reads, and what those names hold later.

A path from a name to a tensor, or a name that captured lines read, is looked up again before each
replay. Neither keeps anything alive: objects are referenced weakly, locals by their frame while it
runs, and what is read of a frame is released at once.
"""

from __future__ import annotations

import ast
import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from cgtool.model.capture import Frame
from cgtool.observe.frames import is_internal, line_of
from cgtool.observe.lookup import MISSING, resolve, weakly
from cgtool.observe.source import Step, Use, tree_of, uses_of_block
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.private import buffers_of, parameters_of

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


def names_of(frame: FrameType) -> Iterator[tuple[str, Any, bool]]:
    """(name, value, is global) of all that the code of a frame can name."""
    if frame.f_code.co_flags & 1:
        for name, value in locals_of(frame).items():
            yield name, value, False
    for name in frame.f_code.co_names:
        if name in frame.f_globals:
            yield name, frame.f_globals[name], True


# Paths to tensors.


@dataclass(frozen=True)
class Path:
    """One way from a name to a tensor."""

    kind: str
    """``name``, ``attribute``, ``item``, ``parameter``."""
    text: str
    """As it would be written: ``plan.idx``."""
    root: Callable[[Stack], Any]
    """What the name holds now; None or ``MISSING`` where it is gone."""
    steps: tuple[Step, ...] = ()
    """From there to the tensor."""
    frame: int | None = None
    """Identity of the frame of a local."""
    module: weakref.ref[torch.nn.Module] | None = None

    def look(self, stack: Stack) -> Any:
        """What the path leads to now."""
        return resolve(self.root(stack), self.steps)


class Modules:
    """Parameters and buffers of the modules that the code around a capture can name."""

    def __init__(self) -> None:
        self._roots: set[int] = set()
        self._paths: dict[int, Path] = {}
        """By key of the storage."""

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
                    if key is not None and key not in self._paths:
                        text = ".".join(part for part in (name, prefix, own) if part)
                        self._paths[key] = _parameter(text, module, own)

    def find(self, key: int) -> Path | None:
        """The path to the parameter or buffer with this storage."""
        return self._paths.get(key)


def _parameter(text: str, module: torch.nn.Module, name: str) -> Path:
    owner = weakref.ref(module)
    return Path("parameter", text, lambda _: owner(), (("attribute", name),), module=owner)


def paths_to(key: int, frame: FrameType | None, modules: Modules) -> list[Path]:
    """The names by which the running code can reach a storage, the innermost frame's first."""
    paths: list[Path] = []
    visited: set[tuple[int, str]] = set()
    for running in stack_of(frame).values():
        for name, value, is_global in names_of(running):
            owner = id(running.f_globals) if is_global else id(running)
            if (owner, name) in visited:
                continue
            visited.add((owner, name))
            if isinstance(value, torch.nn.Module):
                modules.add(name, value)
            else:
                paths += _paths_through(running, name, value, key, is_global)
    parameter = modules.find(key)
    return [parameter] if parameter is not None else paths


def _paths_through(
    frame: FrameType, name: str, value: Any, key: int, is_global: bool
) -> Iterator[Path]:
    """The paths from one name to a storage: the value itself, or what is directly inside it."""
    code, number, names = frame.f_code, id(frame), frame.f_globals

    def look_up(stack: Stack) -> Any:
        if is_global:
            return names.get(name, MISSING)
        running = stack.get(number)
        if running is None or running.f_code is not code:
            return MISSING
        return locals_of(running).get(name, MISSING)

    where = None if is_global else number
    if _has_storage(value, key):
        yield Path("name", name, look_up, frame=where)
        return
    for step in _inside(value, key):
        kind, inner = step
        text = f"{name}.{inner}" if kind == "attribute" else f"{name}[{inner!r}]"
        # Objects outlive the frames that name them.
        owner = None if is_global else weakly(value)
        root = look_up if owner is None else lambda _, owner=owner: owner()
        yield Path(kind, text, root, (step,), where)


def _has_storage(value: Any, key: int) -> bool:
    return isinstance(value, torch.Tensor) and key_of(value) == key


def _inside(value: Any, key: int) -> Iterator[Step]:
    """The attributes or keys under which an object or container holds the storage."""
    kind = "item"
    items: Any = ()
    if isinstance(value, dict):
        items = ((name, item) for name, item in value.items() if isinstance(name, str | int))
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    elif not isinstance(value, torch.Tensor | ModuleType):
        kind, items = "attribute", getattr(value, "__dict__", {}).items()
    for name, item in list(itertools.islice(items, _ATTRIBUTES)):
        if _has_storage(item, key):
            yield kind, name


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
    """A name that captured lines of a function read."""

    code: CodeType
    frame: int
    """Identity of the frame, which goes on after the capture."""
    use: Use

    @property
    def place(self) -> Frame:
        """The line that reads it."""
        return Frame(self.code.co_filename, self.use.line, self.code.co_qualname)

    def look_up(self, stack: Stack) -> Any:
        """The value now; ``MISSING`` once the frame has ended."""
        frame = stack.get(self.frame)
        if frame is None or frame.f_code is not self.code:
            return MISSING
        names = {**frame.f_globals, **locals_of(frame)}
        return resolve(names.get(self.use.root, MISSING), self.use.steps)


def captured_names(frame: FrameType, lines: tuple[int, int]) -> Iterator[CapturedName]:
    """What the lines of a capture (``region_of``) read of the function that captures."""
    code = frame.f_code
    uses = uses_of_block(code, lines)
    written = {(use.text, use.line) for use in uses if use.written}
    for use in uses:
        if (use.text, use.line) not in written:
            yield CapturedName(code, id(frame), use)
