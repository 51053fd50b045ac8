"""The containers and objects of a script that hold a tensor, in how many items, and calls that were
put off with it.

They are searched anew each time, from the names of the code that runs; nothing is kept alive.
"""

from __future__ import annotations

import gc
import itertools
import math
import queue
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache, partial
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from cgtool.model.capture import Frames
from cgtool.observe.host_values import array_address
from cgtool.observe.script.changes import Target, put_at
from cgtool.observe.script.names import names_of, stack_of

_DEPTH = 4
"""Containers inside containers that are looked into."""
_ITEMS = 4096
_FunctionCache = type(lru_cache(len))

MemoryOf = Callable[[Any], Hashable]
"""Names the memory of a tensor or an array; None for those that do not matter."""
Holding = tuple[str, Target, Hashable]
"""A file, how a container is written in it, and the memory that it holds."""


class PutOffCall(NamedTuple):
    """A call that was put off: a partial, a closure, a method, an object that can be called."""

    function: int
    """Identity of what is called; equal for the calls of one line."""
    owner: int
    """Identity of what holds the arguments; 0 for any."""
    memory: Hashable
    """Of one of the arguments."""


def holdings(
    frame: FrameType | None, memory: MemoryOf, largest: float = math.inf
) -> Iterator[tuple[Holding, int, Callable[[], Frames]]]:
    """The containers that the script can name and that hold a memory, in how many items, and
    the line that puts them there; none with more than ``largest`` items."""
    for running in stack_of(frame).values():
        file = running.f_code.co_filename
        for name, value, _ in names_of(running):
            for target, kept in _holders_of(("name", name), value, memory, largest):
                for each, count in kept.most_common():
                    yield (file, target, each), count, partial(put_at, file, target)


def _items(value: Any, largest: float = math.inf) -> list[tuple[Target | None, Any]]:
    """What is directly in a container, or in an object of the script: how it is written, and what
    it is. Nothing of one with more than ``largest`` items."""
    if isinstance(value, queue.Queue):
        value = value.queue
    if isinstance(value, dict | list | tuple | deque | set) and len(value) > largest:
        return []
    if isinstance(value, dict):
        pairs = itertools.islice(value.items(), _ITEMS)
        return [
            (("item", key) if isinstance(key, str | int) else None, item) for key, item in pairs
        ]
    if isinstance(value, list | tuple | deque | set):
        return [(None, item) for item in itertools.islice(value, _ITEMS)]
    if isinstance(value, _FunctionCache):
        return [(None, item) for item in _cached(value)[:_ITEMS]]
    if isinstance(value, torch.nn.Module | type | ModuleType) or callable(value):
        return []
    table = getattr(value, "__dict__", None)
    if table is None:
        # Slots, and objects in C: futures.
        parts = gc.get_referents(value) if gc.is_tracked(value) else ()
        return [(None, part) for part in parts if not isinstance(part, type)]
    return [(("attribute", name), item) for name, item in table.items()] + _caches_of(value)


def _cached(function: Any) -> list[Any]:
    """What the cache of a function (`functools.lru_cache`) keeps."""
    parts = gc.get_referents(function)
    # Without a bound, the results are in a dict; else, in items of a linked list.
    values = [value for part in parts if type(part) is dict for value in part.values()]
    return [*values, *(part for part in parts if type(part) is not dict)]


def _caches_of(value: Any) -> list[tuple[Target | None, Any]]:
    """The caches of the methods of an object, as `_items` returns them."""
    return [
        (("attribute", name), member)
        for owner in type(value).__mro__
        for name, member in vars(owner).items()
        if isinstance(member, _FunctionCache)
    ]


def _calls(value: Any, memory: MemoryOf) -> set[Hashable]:
    """As `PutOffCall`, the memory that a call was given which is put off."""
    owner, function, given = value, id(type(value)), ()  # type: Any, int, Any
    if isinstance(value, partial):
        function, given = id(value.func), (*value.args, *value.keywords.values())
    elif isinstance(value, FunctionType):
        # A cell may be empty, and a tensor has no truth value.
        given = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        given += tuple(part for cell in value.__closure__ or () for part in gc.get_referents(cell))
        function = id(value.__code__)
    else:
        if isinstance(value, MethodType):
            owner, function = value.__self__, id(value.__func__)
        if not isinstance(owner, torch.nn.Module | type | ModuleType):
            given = getattr(owner, "__dict__", {}).values()
    return {
        PutOffCall(function, id(owner), own)
        for part in given
        if isinstance(part, torch.Tensor) and (own := memory(part)) is not None
    }


def _memories(value: Any, memory: MemoryOf, largest: float, depth: int) -> set[Hashable]:
    """Of the tensors and arrays in a value."""
    if isinstance(value, torch.Tensor) or array_address(value) is not None:
        return {memory(value)} - {None}
    if callable(value) and not isinstance(value, _FunctionCache):
        return _calls(value, memory)
    inner = _items(value, largest) if depth > 0 else ()
    return set().union(*(_memories(item, memory, largest, depth - 1) for _, item in inner))


def _holders_of(
    target: Target, value: Any, memory: MemoryOf, largest: float, depth: int = _DEPTH
) -> Iterator[tuple[Target, Counter[Hashable]]]:
    """How the containers in ``value`` are written that hold some memory, and in how many items."""
    items = [] if isinstance(value, torch.Tensor) else _items(value, largest)
    # The keys of a record are names: what several records hold is not kept several times.
    is_record = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    kept: Counter[Hashable] = Counter()
    calls: set[PutOffCall] = set()
    if isinstance(value, list | tuple | deque | set | dict | queue.Queue | _FunctionCache):
        for _, item in items:
            own = _memories(item, memory, largest, 0 if is_record else depth - 1)
            own_calls = {each for each in own if isinstance(each, PutOffCall)}
            calls |= own_calls
            kept.update(own - own_calls)
    kept.update(call._replace(owner=0) for call in calls)
    if kept:
        yield target, kept
    for name, item in items:
        if depth and name:
            yield from _holders_of(name, item, memory, largest, depth - 1)
