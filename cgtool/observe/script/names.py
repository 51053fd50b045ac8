"""Values that the running code of a script can name: those of the functions that run, and those in
their containers and attributes. Numbers, texts and the like are left out.

Everything is looked up anew each time, without a call of the script's code, and nothing is kept
alive: a path to a value references objects weakly, and locals by the frame that runs.
"""

from __future__ import annotations

import contextlib
import inspect
import queue
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any

import torch

from cgtool.observe.frames import callers, is_internal, locals_of
from cgtool.observe.kept_values import MISSING, weakly
from cgtool.observe.source import names_in
from cgtool.torch_compat.private import TABLES_OF, buffers_of, children_of, parameters_of
from cgtool.torch_compat.weak import Weak

_OBJECTS = 8192
"""Objects and containers that one search looks into."""
_ITEMS = 512
"""Items of one container, the newest ones."""
_DEPTH = 5
"""Steps from a name; from a module to those inside it takes none."""
_CONTAINERS = list, tuple, dict, set, deque
_NO_PARTS = (
    types.ModuleType, type, types.BuiltinFunctionType, types.CodeType, types.GeneratorType,
    types.CoroutineType, types.FrameType, torch.dtype, torch.device, str, bytes, bytearray, int,
    bool, float, complex, range, type(None),
)  # fmt: skip
_LEFT_OUT = frozenset(_NO_PARTS)
_MODULE_FIELDS = frozenset(vars(torch.nn.Module()))

Stack = dict[int, FrameType]
"""The user's frames that run, by identity, innermost first."""
Root = Callable[[Stack], Any]
"""Looks up an object; ``MISSING`` if it is gone."""


def stack_of(frame: FrameType | None) -> Stack:
    """The user's frames from ``frame`` outward."""
    return {id(each): each for each in callers(frame) if not is_internal(each.f_code)}


@dataclass(slots=True, eq=False)
class Named:
    """A value, and one way to it."""

    value: Any
    text: str
    """The path in Python's notation: ``run.outputs[2]``."""
    scope: str
    """The function, or the file, that has the name at its beginning."""
    kind: str
    """``name``, ``attribute``, ``item``, ``parameter`` (also a buffer), ``state`` (of an
    optimizer)."""
    key: Any = None
    """Key of the attribute or item; None if it cannot be found again."""
    holder: Named | None = None
    """The object that has it as an attribute or item; None for a name."""
    items: tuple[int, ...] = ()
    """The numbers of the items that are this value: several, if they are one object."""
    root: Root | None = None
    """Looks up a name that no other object holds."""

    @property
    def containers(self) -> list[tuple[str, tuple[int, ...]]]:
        """The containers on the way, outermost first: what they are called, and which of their
        items lead on."""
        outer = [] if self.holder is None else self.holder.containers
        if self.holder is not None and self.items:
            outer.append((f"{self.scope}: {self.holder.text}", self.items))
        return outer

    def path(self) -> Path | None:
        """How to look it up later; None if that is not possible."""
        steps: list[tuple[str, Any]] = []
        named = self
        while named.holder is not None:
            if named.key is None:
                return None
            steps.insert(0, (named.kind, named.key))
            named = named.holder
            # Objects outlive the frames that name them.
            weak = None if isinstance(named.value, _CONTAINERS) else weakly(named.value)
            if weak is not None:
                if self.kind in ("parameter", "state"):
                    return Path(self.kind, self.text, partial(_alive, weak), steps, weak)
                root = partial(_alive, weak)
                return Path(self.kind, self.text, root, steps, is_listed=self._is_listed())
        if named.root is None:
            return None
        return Path(self.kind, self.text, named.root, steps, is_listed=self._is_listed())

    def _is_listed(self) -> bool:
        holder = self.holder
        return holder is not None and (
            isinstance(holder.value, list | tuple) or holder._is_listed()
        )


@dataclass(slots=True, eq=False)
class Path:
    """One way from a name to a value, which keeps nothing alive."""

    kind: str
    text: str
    root: Root
    steps: list[tuple[str, Any]]
    """From there to the value: kinds and keys, as of ``Named``."""
    owner: Callable[[], Any] = lambda: None
    """A weak reference to the module whose parameter or buffer it is, or to the optimizer whose
    state."""
    is_listed: bool = False
    """It leads through a list or a tuple."""

    def look(self, stack: Stack) -> Any:
        """The value at the path now."""
        value = self.root(stack)
        for kind, key in self.steps:
            value = _part(value, kind, key)
        return value


def everything_named(stack: Stack) -> Iterator[Named]:
    """All that the running code can follow from its names, the nearest first; of what has the same
    distance, that of the innermost function."""
    pending, following = deque(_names(stack)), deque[Named]()
    known: set[tuple[int, str]] = set()
    for _ in range(_DEPTH + 1):
        while pending:
            named = pending.popleft()
            yield named
            value, kind = named.value, type(named.value)  # `isinstance` may run the script's code
            if issubclass(kind, (torch.Tensor, *_NO_PARTS)):
                continue
            # What is in several containers is looked into once for each of them.
            number = id(value), named.containers[-1][0] if named.containers else ""
            if number in known:
                continue
            if len(known) >= _OBJECTS:
                return
            known.add(number)
            if issubclass(kind, torch.nn.Module):
                pending.extend(_children(named, value))
            following.extend(_parts(named))
        pending, following = following, pending


def _names(stack: Stack) -> Iterator[Named]:
    known: set[tuple[int, str]] = set()
    for number, frame in stack.items():
        code, names = frame.f_code, frame.f_globals
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        for name, value in locals_of(frame).items() if is_function else ():
            if type(value) not in _LEFT_OUT:
                root = partial(_of_frame, number, code, name)
                yield Named(value, name, code.co_qualname, "name", root=root)
        for name in names_in(code) if is_function else tuple(names):
            if (
                type(names.get(name)) not in _LEFT_OUT
                and (id(names), name) not in known
                and not name.startswith("__")
            ):
                known.add((id(names), name))
                root = partial(_of_module, names, name)
                yield Named(names[name], name, code.co_filename, "name", root=root)


def _of_frame(number: int, code: types.CodeType, name: str, stack: Stack) -> Any:
    frame = stack.get(number)
    is_same = frame is not None and frame.f_code is code
    return locals_of(frame).get(name, MISSING) if frame and is_same else MISSING


def _of_module(names: dict[str, Any], name: str, _stack: Stack) -> Any:
    return names.get(name, MISSING)


def _alive(reference: Callable[[], Any], _stack: Stack) -> Any:
    """The value of a reference that does not depend on the running functions."""
    value = reference()
    return MISSING if value is None else value


def _children(named: Named, module: torch.nn.Module) -> Iterator[Named]:
    for name, child in children_of(module).items():
        if child is not None:
            yield Named(child, f"{named.text}.{name}", named.scope, "attribute", name, named)


def _parts(named: Named) -> Iterator[Named]:
    """Items of a container, attributes of an object."""
    value, text, scope = named.value, named.text, named.scope
    if issubclass(type(value), queue.Queue):
        value = value.queue
    kind = type(value)
    if issubclass(kind, _CONTAINERS):
        items = [
            (number, key, item)
            for number, (key, item) in enumerate(_items(value))
            if type(item) not in _LEFT_OUT
        ]
        numbers: defaultdict[int, list[int]] = defaultdict(list)
        for number, _, item in items:
            numbers[id(item)].append(number)
        for _, key, item in items:
            alike = tuple(numbers.pop(id(item), ()))
            if alike:
                inner = f"{text}[{'...' if key is None else repr(key)}]"
                yield Named(item, inner, scope, "item", key, named, alike)
    elif issubclass(kind, torch.optim.Optimizer):
        yield from _state_of(named, value)
    else:
        if issubclass(kind, torch.nn.Module):
            for table in (parameters_of(value), buffers_of(value)):
                for name, part in table.items():
                    if part is not None:
                        yield Named(part, f"{text}.{name}", scope, "parameter", name, named)
        for name, part in _fields(value):
            if type(part) not in _LEFT_OUT:
                yield Named(part, f"{text}.{name}", scope, "attribute", name, named)


def _items(value: Any) -> list[tuple[Any, Any]]:
    """The newest items, each with its key. Not by methods of the container, which may be the
    script's own."""
    if isinstance(value, dict):
        items = list(islice(reversed(dict.items(value)), _ITEMS))
        return [(key if isinstance(key, str | int) else None, item) for key, item in items]
    if isinstance(value, list | tuple):
        kind: Any = list if isinstance(value, list) else tuple
        first = max(0, kind.__len__(value) - _ITEMS)
        return list(enumerate(kind.__getitem__(value, slice(first, None)), first))
    newest = list(islice(value, _ITEMS))
    if isinstance(value, deque):
        newest = [*reversed(list(islice(deque.__reversed__(value), _ITEMS)))]
    return [(None, item) for item in newest]


def _state_of(named: Named, optimizer: torch.optim.Optimizer) -> Iterator[Named]:
    text, scope = named.text, named.scope
    for parameter, state in optimizer.state.items():
        for name, part in state.items() if isinstance(state, dict) else ():
            key = Weak(parameter), name
            yield Named(part, f"{text}.state[...][{name!r}]", scope, "state", key, named)
    for number, group in enumerate(optimizer.param_groups):
        for name, part in group.items():
            if isinstance(part, torch.Tensor):
                inner = f"{text}.param_groups[{number}][{name!r}]"
                yield Named(part, inner, scope, "item", (number, name), named)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, without a call of what its class defines. Not of a graph of the
    simulated device."""
    if type(value).__module__.startswith("cgtool."):
        return
    skipped = _MODULE_FIELDS if issubclass(type(value), torch.nn.Module) else ()
    table: Any = {}
    with contextlib.suppress(AttributeError, TypeError):
        table = object.__getattribute__(value, "__dict__")
    for name, part in list(table.items()) if isinstance(table, dict) else ():
        if name not in skipped:
            yield name, part
    for kind in type(value).__mro__:
        for name, member in list(vars(kind).items()) if "__slots__" in vars(kind) else ():
            if isinstance(member, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # a field that was not set
                    yield name, member.__get__(value)


def _part(value: Any, kind: str, key: Any) -> Any:
    """The attribute or item of a value now."""
    if isinstance(value, torch.optim.Optimizer) and isinstance(key, tuple):
        place, name = key
        if kind == "state":
            return value.state.get(place(), {}).get(name, MISSING)
        groups = value.param_groups
        return groups[place].get(name, MISSING) if place < len(groups) else MISSING
    if kind == "item":
        if isinstance(value, dict):
            return dict.get(value, key, MISSING)
        is_there = isinstance(value, list | tuple) and key in range(len(value))
        return value[key] if is_there else MISSING
    for table in TABLES_OF if isinstance(value, torch.nn.Module) else ():
        if key in table(value):
            return table(value)[key]
    return next((part for name, part in _fields(value) if name == key), MISSING)
