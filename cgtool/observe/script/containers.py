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
from types import CoroutineType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from cgtool.model.capture import Frames
from cgtool.observe.host_values import array_address
from cgtool.observe.lookup import in_slots
from cgtool.observe.script.changes import Part, Target, put_at
from cgtool.observe.script.names import is_field_of_modules, names_of, stack_of
from cgtool.torch_compat.private import children_of

_DEPTH = 5
"""Containers inside containers that are looked into."""
_ITEMS = 4096
_OBJECTS = 64
"""Objects in one list whose own containers are looked for."""
_MODULES = 16
"""Modules inside others that are looked into."""
_FunctionCache = type(lru_cache(len))

_WITHOUT_PARTS = int, float, str, FunctionType, torch.Tensor
_CONTAINERS = list, tuple, deque, set, dict, queue.Queue, _FunctionCache

_WITHOUT_ITEMS = ModuleType, GeneratorType, CoroutineType
"""What waits in the variables of a generator is not kept: it goes on with them."""

MemoryOf = Callable[[Any], Hashable]
"""Names the memory of a tensor or an array; None for those that do not matter."""
_OfClass = list[tuple[Target | None, Any]]
"""What a class holds for all its instances: containers and the caches of methods."""
_Parts = dict[Hashable, tuple[Part, ...]]
"""By a memory that an item of a container holds: the parts of the item that lead to it, innermost
first."""
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
    the line that puts it there; none with more than ``largest`` items."""
    searches: dict[str, _Search] = {}
    for running in stack_of(frame).values():
        file = running.f_code.co_filename
        search = searches.setdefault(file, _Search(memory, largest))
        for name, value, _ in names_of(running):
            for target, kept, parts in search.holders_of(("name", name), value):
                for each, count in kept.most_common():
                    inside = parts.get(each, ())
                    yield (file, target, each), count, partial(put_at, file, target, inside)


def _is_function(value: Any) -> bool:
    """Whether it can be called, and is not an object of a class in Python with a `__call__`."""
    return callable(value) and not isinstance(type(value).__call__, FunctionType)


def _cached(function: Any) -> list[Any]:
    """What the cache of a function (`functools.lru_cache`) keeps."""
    parts = gc.get_referents(function)
    # Without a bound, the results are in a dict; else, in items of a linked list.
    values = [value for part in parts if type(part) is dict for value in part.values()]
    return [*values, *(part for part in parts if type(part) is not dict)]


def _of_class(kind: type) -> _OfClass:
    return [
        (("attribute", name), member)
        for owner in kind.__mro__
        if owner.__module__ != "builtins" and not owner.__module__.startswith("torch.")
        for name, member in vars(owner).items()
        if isinstance(member, _CONTAINERS) and not name.startswith("__")
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


class _Search:
    """For what the names of one file lead to. An object is looked into once."""

    def __init__(self, memory: MemoryOf, largest: float) -> None:
        self._memory, self._largest = memory, largest
        self._steps: dict[int, int] = {}
        """By id of an object: how many steps were followed from it."""
        self._modules = _MODULES
        """How many more inside others are looked into."""
        self._classes: dict[type, _OfClass] = {}

    def holders_of(
        self, target: Target, value: Any
    ) -> Iterator[tuple[Target, Counter[Hashable], _Parts]]:
        """How the containers in ``value`` are written that hold some memory, in how many items,
        and in which parts of an item."""
        yield from self._holders_of(target, value, _DEPTH)

    def _holders_of(
        self, target: Target, value: Any, depth: int, owner: Any = None
    ) -> Iterator[tuple[Target, Counter[Hashable], _Parts]]:
        if value is None or isinstance(value, _WITHOUT_PARTS):
            return
        is_container = isinstance(value, _CONTAINERS)
        if not (is_container or self._is_new(value, depth, owner)):
            return
        items = self._items(value)
        # The keys of a record are names: what several records hold is not kept several times.
        is_record = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        kept: Counter[Hashable] = Counter()
        parts: _Parts = {}
        calls: set[PutOffCall] = set()
        for _, item in items if is_container else ():
            own = self._memories(item, 0 if is_record else depth - 1)
            own_calls = {each for each in own if isinstance(each, PutOffCall)}
            calls |= own_calls
            kept.update(own.keys() - own_calls)
            parts |= own
        kept.update(call._replace(owner=0) for call in calls)
        if kept:
            yield target, kept, parts
        unnamed = 0
        for name, item in items if depth else ():
            if name is not None:
                yield from self._holders_of(name, item, depth - 1, value)
            elif unnamed < _OBJECTS and not isinstance(item, _CONTAINERS):
                unnamed += 1
                yield from self._holders_of(target, item, depth - 1)

    def _items(self, value: Any) -> list[tuple[Target | None, Any]]:
        """What is directly in a container, or in an object of the script: how it is written, and
        what it is. Nothing of a container with too many items."""
        if isinstance(value, queue.Queue):
            value = value.queue
        if isinstance(value, dict | list | tuple | deque | set) and len(value) > self._largest:
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
        if isinstance(value, type):
            return self._shared_by(value)
        if isinstance(value, (*_WITHOUT_ITEMS, torch.cuda.CUDAGraph)) or _is_function(value):
            return []
        table = getattr(value, "__dict__", None)
        fields = [
            *self._shared_by(type(value)),
            *((("attribute", name), item) for name, item in in_slots(value)),
        ]
        if table is None and not fields:
            # Objects in C: futures.
            parts = gc.get_referents(value) if gc.is_tracked(value) else ()
            return [(None, part) for part in parts if not isinstance(part, type)]
        own = (table or {}).items()
        if isinstance(value, torch.nn.Module):
            own = [(name, item) for name, item in own if not is_field_of_modules(name)]
            own += children_of(value).items()
        return [(("attribute", name), item) for name, item in own] + fields

    def _shared_by(self, kind: type) -> _OfClass:
        if kind not in self._classes:
            self._classes[kind] = _of_class(kind)
        return self._classes[kind]

    def _is_new(self, value: Any, depth: int, owner: Any) -> bool:
        """Whether an object has not been looked into, or not as deep."""
        if self._steps.get(id(value), -1) >= depth:
            return False
        if isinstance(value, torch.nn.Module) and isinstance(owner, torch.nn.Module):
            is_part = type(value).__module__.startswith("torch.") and not children_of(value)
            if is_part or self._modules == 0:
                return False
            self._modules -= 1
        self._steps[id(value)] = depth
        return True

    def _memories(self, value: Any, depth: int) -> _Parts:
        """Of the tensors and arrays in a value."""
        if isinstance(value, torch.Tensor) or array_address(value) is not None:
            own = self._memory(value)
            return {} if own is None else {own: ()}
        if callable(value) and not isinstance(value, _FunctionCache):
            return dict.fromkeys(_calls(value, self._memory), ())
        found: _Parts = {}
        for name, item in self._items(value) if depth > 0 else ():
            for each, inner in self._memories(item, depth - 1).items():
                is_direct = isinstance(item, torch.Tensor)
                part = () if name is None else (Part(name, type(value), is_direct),)
                found.setdefault(each, (*inner, *part))
        return found
