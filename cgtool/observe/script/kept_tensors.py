"""Where a script holds tensors: under names of the functions that run, in the containers and the
objects that they lead to.

Everything is looked up anew each time, nearest first, and nothing is kept alive.
"""

from __future__ import annotations

import contextlib
import queue
import types
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

import torch

from cgtool.observe.frames import callers, is_internal, locals_of

_OBJECTS = 2048
"""Objects and containers that one search looks into."""
_ITEMS = 512
"""Items of one container, the newest ones."""
_DEPTH = 5
"""Steps from a name."""
_CONTAINERS = list, tuple, dict, set, deque
_NO_PARTS = (
    types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, types.CodeType,
    types.GeneratorType, types.CoroutineType, types.FrameType, torch.dtype, torch.device,
    str, bytes, bytearray, int, float, complex, range,
)  # fmt: skip


class Step(NamedTuple):
    """A container on the way to a tensor."""

    text: str
    """How it is written, from the function or the file that has the name."""
    items: tuple[int, ...]
    """The numbers of the items that lead to the tensor: several, if they are one object."""


class Holder(NamedTuple):
    """One reference of the script to a tensor."""

    tensor: torch.Tensor
    text: str
    """As written in Python: ``run.outputs[2]``."""
    scope: str
    """The function, or the file, that has the name."""
    steps: tuple[Step, ...]
    """The containers on the way, outermost first."""


class _Found(NamedTuple):
    value: Any
    text: str
    scope: str
    steps: tuple[Step, ...]


def holders_of_tensors(frame: FrameType | None) -> Iterator[Holder]:
    """The references to tensors that the running code can follow from its names, the innermost
    function's first."""
    pending = deque(_Found(value, name, scope, ()) for scope, name, value in _names(frame))
    following: deque[_Found] = deque()
    known: set[tuple[int, str]] = set()
    for _ in range(_DEPTH + 1):
        while pending:
            found = pending.popleft()
            value = found.value
            if isinstance(value, torch.Tensor):
                yield Holder(*found)
                continue
            # What is in several containers is looked into once for each of them.
            number = id(value), found.steps[-1].text if found.steps else ""
            if value is not None and not isinstance(value, _NO_PARTS) and number not in known:
                known.add(number)
                following.extend(_parts(found))
                if len(known) >= _OBJECTS:
                    return
        pending, following = following, pending


def _names(frame: FrameType | None) -> Iterator[tuple[str, str, Any]]:
    """(scope, name, value) of what the user's functions that run can name."""
    known: set[tuple[int, str]] = set()
    for running in callers(frame):
        code, names = running.f_code, running.f_globals
        if is_internal(code):
            continue
        is_function = bool(code.co_flags & 1)
        for name, value in locals_of(running).items() if is_function else ():
            yield code.co_qualname, name, value
        for name in code.co_names if is_function else tuple(names):
            if name in names and (id(names), name) not in known and not name.startswith("__"):
                known.add((id(names), name))
                yield code.co_filename, name, names[name]


def _parts(found: _Found) -> Iterator[_Found]:
    """Items of a container, attributes of an object."""
    value, text, scope, steps = found
    if isinstance(value, queue.Queue):
        value = value.queue
    if isinstance(value, _CONTAINERS):
        items = _items(value)
        numbers: defaultdict[int, list[int]] = defaultdict(list)
        for number, (_, item) in enumerate(items):
            numbers[id(item)].append(number)
        for key, item in items:
            step = Step(f"{scope}: {text}", tuple(numbers.pop(id(item), ())))
            if step.items:
                yield _Found(item, f"{text}[{key!r}]", scope, (*steps, step))
        return
    for name, part in _fields(value):
        yield _Found(part, f"{text}.{name}", scope, steps)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, without a call of what its class defines. Not of a graph of the
    simulated device."""
    if type(value).__module__.startswith("cgtool."):
        return
    with contextlib.suppress(AttributeError):
        yield from list(object.__getattribute__(value, "__dict__").items())
    for kind in type(value).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(member, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # a field that was not set
                    yield name, member.__get__(value)


def _items(value: Any) -> list[tuple[Any, Any]]:
    """The newest items, each with its key. Not by methods of the container, which may be the
    script's own."""
    if isinstance(value, dict):
        items = list(islice(reversed(dict.items(value)), _ITEMS))
        return [(key if isinstance(key, str | int) else "...", item) for key, item in items]
    if isinstance(value, list | tuple):
        kind: Any = list if isinstance(value, list) else tuple
        first = max(0, kind.__len__(value) - _ITEMS)
        return list(enumerate(kind.__getitem__(value, slice(first, None)), first))
    if isinstance(value, deque):
        newest = list(islice(deque.__reversed__(value), _ITEMS))
        return list(enumerate(reversed(newest), deque.__len__(value) - len(newest)))
    return [("...", item) for item in list(islice(value, _ITEMS))]
