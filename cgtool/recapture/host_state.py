"""The state that Python holds on the host: read, compared, changed item by item, and restored.

An ``Item`` is one thing that two readings do not share: an attribute, an item of a container, the
values of a small CPU tensor, the state of a random generator. Iterators of Python and NumPy arrays
are among them. Files, sockets, threads and objects of C extensions are not: what they hold cannot
be set back.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch

from cgtool.observe.raw_tensors import raw, same_bits
from cgtool.observe.tensors import has_memory, on_host
from cgtool.program.places import Items, Place, same_objects
from cgtool.program.progress import Copies, copy_of, is_iterator, progress
from cgtool.program.reach import Reachable

_SMALL = 4096
"""Elements of a CPU tensor, or of an array, that is restored."""
_NUMBERS = (int, float)
_VALUES = (*_NUMBERS, bool, str, bytes, complex, type(None))


@dataclass(frozen=True, eq=False)
class Item:
    """One thing that two readings do not share; its values may be any objects."""

    path: str
    """How the code names it: `scheduler.last_epoch`; what it is, if it has no name."""
    kind: str
    """``number``, ``value``, ``object``, ``container``, ``tensor``, ``random`` or ``iterator``."""
    before: Any
    after: Any
    key: tuple[str, int, Any]
    """Which table of ``Reading`` it is in, the number in it, and the key in a place."""

    @property
    def text(self) -> str:
        """Its two values."""
        if self.kind == "container":
            return f"`{self.path}` had {len(self.before)} items, then {len(self.after)}"
        if self.kind in ("number", "value"):
            return f"`{self.path}` was {_short(self.before)}, then {_short(self.after)}"
        if self.kind == "random":
            return f"{self.path} goes on from call to call"
        if self.kind == "tensor":
            is_array = not isinstance(self.after, torch.Tensor)
            subject = self.path if is_array else f"the CPU tensor `{self.path}`"
            return f"{subject} has other values in the next call"
        if self.kind == "iterator":
            return f"`{self.path}` moves on"
        return f"`{self.path}` is another object"


@dataclass
class Reading:
    """The state of the host at one time."""

    places: list[Items] = field(default_factory=list)
    iterators: dict[tuple[int, Any], Any] = field(default_factory=dict)
    """By place and key: a copy of an iterator."""
    tensors: list[torch.Tensor] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    random: list[Any] = field(default_factory=list)

    def with_items(self, other: Reading, items: Iterable[Item]) -> Reading:
        """This one, with the values that ``other`` has for some items, and for all that this one
        does not have."""
        known = len(self.places)
        made = Reading(
            [*self.places, *other.places[known:]],
            self.iterators | {k: v for k, v in other.iterators.items() if k[0] >= known},
            [*self.tensors, *other.tensors[len(self.tensors) :]],
            [*self.arrays, *other.arrays[len(self.arrays) :]],
            [*self.random, *other.random[len(self.random) :]],
        )
        for item in items:
            made._take(other, item)
        return made

    def _take(self, other: Reading, item: Item) -> None:
        table, number, key = item.key
        if table != "places":
            getattr(self, table)[number] = getattr(other, table)[number]
        elif item.kind == "container":
            self.places[number] = other.places[number]
            for each in [each for each in self.iterators if each[0] == number]:
                del self.iterators[each]
            self.iterators |= {k: v for k, v in other.iterators.items() if k[0] == number}
        else:
            # In the order of the other one, which the order of a dictionary may follow.
            changed = {**self.places[number]}
            if key in other.places[number]:
                changed[key] = other.places[number][key]
            else:
                changed.pop(key, None)
            self.places[number] = changed
            if (number, key) in other.iterators:
                self.iterators[number, key] = other.iterators[number, key]

    def with_numbers(self, items: Sequence[Item], numbers: Sequence[Any]) -> Reading:
        """This one, with other numbers for some items."""
        made = self.with_items(self, ())
        for item, number in zip(items, numbers, strict=True):
            table, index, key = item.key
            if item.kind == "iterator":
                made.iterators[index, key] = number
            elif number is ABSENT:
                made.places[index] = {k: v for k, v in made.places[index].items() if k != key}
            elif table == "places":
                made.places[index] = {**made.places[index], key: number}
            else:
                getattr(made, table)[index] = number
        return made


class HostState:
    """The host state that some objects lead to, and the random generators of the host."""

    def __init__(self, reach: Callable[[], Reachable]) -> None:
        self._reach = reach
        self.places: list[Place] = []
        self._owners: set[tuple[Any, ...]] = set()
        """Who owns the places."""
        self._tensors: list[tuple[str, torch.Tensor]] = []
        self._arrays: list[Any] = []
        self._sources = host_generators()

    def _look(self) -> None:
        """Add what is reachable now: the code may replace what holds its state by another."""
        reachable = self._reach()
        for place in reachable.places:
            if place.owner not in self._owners:
                self._owners.add(place.owner)
                self.places.append(place)
        tensors = [each for each in reachable.tensors.values() if _is_small_on_host(each[1])]
        self._tensors += _unknown(tensors, self._tensors, lambda named: id(named[1]))
        arrays = [each for each in reachable.arrays if each.size <= _SMALL]
        self._arrays += _unknown(arrays, self._arrays, id)
        self._sources += _unknown(reachable.random_sources, self._sources, id)

    def codes(self) -> list[CodeType]:
        """Code objects of the functions that the code can reach."""
        found = (value for _, value in self._reach().objects.values())
        return [each.__code__ for each in found if isinstance(each, FunctionType)]

    def read(self) -> Reading:
        """Reads the state as it is now. A later reading has more, if more is reachable by then."""
        self._look()
        reading = Reading()
        copies: Copies = {}
        for number, place in enumerate(self.places):
            items = _items_of(place)
            reading.places.append(items)
            for key, value in items.items():
                if is_iterator(value) and (kept := copy_of(value, copies)) is not None:
                    reading.iterators[number, key] = kept
        with raw():
            reading.tensors = [tensor.detach().clone() for _, tensor in self._tensors]
        reading.arrays = [array.copy() for array in self._arrays]
        reading.random = [read_generator(source) for source in self._sources]
        return reading

    def restore(self, reading: Reading) -> None:
        """Set everything to what it was."""
        copies: Copies = {}
        for number, (place, items) in enumerate(zip(self.places, reading.places, strict=False)):
            if items is _UNREAD:
                continue
            fresh = {
                key: copy_of(reading.iterators[number, key], copies)
                for key in items
                if (number, key) in reading.iterators
            }
            with contextlib.suppress(Exception):
                place.restore({**items, **fresh} if fresh else items)
        with raw():
            for (_, tensor), values in zip(self._tensors, reading.tensors, strict=False):
                if tensor.shape == values.shape:
                    tensor.detach().copy_(values)
        for array, values in zip(self._arrays, reading.arrays, strict=False):
            with contextlib.suppress(ValueError):  # read-only by now, or of another shape
                array[...] = values
        for source, state in zip(self._sources, reading.random, strict=False):
            write_generator(source, state)

    def seed(self, number: int) -> None:
        """Seed all random generators of the host."""
        for source in self._sources:
            with contextlib.suppress(Exception):
                if hasattr(source, "seed") and not isinstance(source, torch.Generator):
                    source.seed(number)
                elif hasattr(source, "manual_seed"):
                    source.manual_seed(number)
                else:
                    bits = getattr(source, "bit_generator", source)
                    bits.state = type(bits)(number).state

    def differences(self, before: Reading, after: Reading) -> list[Item]:
        """The items that two readings do not share; the later one may have more."""
        items: list[Item] = []
        for number, place in enumerate(self.places[: len(before.places)]):
            old, new = before.places[number], after.places[number]
            if place.same is not same_objects and place.same(new, old):
                continue
            items += self._in_place(number, place, old, new, before, after)
        for number, (path, _) in enumerate(self._tensors[: len(before.tensors)]):
            values = before.tensors[number], after.tensors[number]
            if not same_bits(*values):
                items.append(Item(path, "tensor", *values, ("tensors", number, None)))
        for number, arrays in enumerate(zip(before.arrays, after.arrays, strict=False)):
            if arrays[0].tobytes() != arrays[1].tobytes():
                items.append(Item("an array", "tensor", *arrays, ("arrays", number, None)))
        for number, states in enumerate(zip(before.random, after.random, strict=False)):
            if repr(states[0]) != repr(states[1]):
                name = "a random generator of the host"
                items.append(Item(name, "random", None, None, ("random", number, None)))
        return items

    def changed_since(self, values: Values, reading: Reading) -> list[Item]:
        """The items that differ from ``plain_values`` of another time, as far as these go."""
        items: list[Item] = []
        for number, (place, held) in enumerate(zip(self.places, reading.places, strict=False)):
            for key, value in held.items() if _holds_objects(place) else ():
                name = place.name_of(key)
                # An attribute may have been one of the class until now.
                is_new = name not in values and (place.path, None) in values
                before = ABSENT if is_new else values.get(name, value)
                if type(value) in _VALUES and before not in (value, _AMBIGUOUS):
                    is_number = type(value) is type(before) and type(value) in _NUMBERS
                    kind = "number" if is_number else "value"
                    items.append(Item(name, kind, before, value, ("places", number, key)))
        return items

    def _in_place(
        self, number: int, place: Place, old: Items, new: Items, before: Reading, after: Reading
    ) -> Iterator[Item]:
        if len(old) != len(new) or any(key not in new for key in old):
            yield Item(place.path or "a container", "container", old, new, ("places", number, None))
            return
        for key, value in old.items():
            now, where = new[key], ("places", number, key)
            name = place.name_of(key)
            if (number, key) in after.iterators:
                kept = before.iterators.get((number, key)), after.iterators[number, key]
                if progress(kept[0]) != progress(kept[1]):
                    yield Item(name, "iterator", *kept, where)
            elif type(value) in _VALUES and type(now) in _VALUES:
                if type(value) is not type(now) or (value != now and value == value):
                    is_number = type(value) is type(now) and type(now) in _NUMBERS
                    yield Item(name, "number" if is_number else "value", value, now, where)
            elif value is not now and key is not value:
                yield Item(name, "object", value, now, where)


Values = dict[str | tuple[str, None], Any]


def plain_values(reachable: Reachable) -> Values:
    """Numbers, texts and flags by path, and the paths of what holds something. Keeps nothing
    alive."""
    values: Values = {}
    for place in filter(_holds_objects, reachable.places):
        values[place.path, None] = None
        for key, value in _items_of(place).items():
            if type(value) in _VALUES:
                name = place.name_of(key)
                values[name] = value if values.get(name, value) == value else _AMBIGUOUS
    return values


def _holds_objects(place: Place) -> bool:
    """Whether its values are Python's own. The size of a tensor's memory is not set to another one:
    that would lose what is in it."""
    return place.same is same_objects


_AMBIGUOUS = object()
"""Several places have this name, and hold different values."""


class _Absent:
    def __repr__(self) -> str:
        return "not there"


ABSENT = _Absent()
"""The value of what a place does not hold."""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def _unknown(values: list[Any], known: list[Any], identity: Callable[[Any], int]) -> list[Any]:
    ids = {*map(identity, known)}
    return [value for value in values if identity(value) not in ids]


def _is_small_on_host(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout == torch.strided and not tensor.is_quantized
    return is_plain and on_host(tensor) and has_memory(tensor) and tensor.numel() <= _SMALL


_UNREAD: Items = {}
"""In place of what could not be read: it is not set back."""


def _items_of(place: Place) -> Items:
    try:
        return place.items()
    except Exception:  # an attribute of the user's that raises, or a set that a thread fills
        return _UNREAD


def host_generators() -> list[Any]:
    """The random generators that all code shares."""
    numpy = sys.modules.get("numpy")
    return [random, torch.default_generator, *([] if numpy is None else [numpy.random])]


def read_generator(source: Any) -> Any:
    """The state of a source of random numbers, which can be compared by its text."""
    if hasattr(source, "getstate"):  # Python's
        return source.getstate()
    if hasattr(source, "get_state"):  # PyTorch's, and the older ones of NumPy
        with raw():
            state = source.get_state()
            return bytes(state.tolist()) if isinstance(state, torch.Tensor) else state
    return getattr(source, "bit_generator", source).state


def write_generator(source: Any, state: Any) -> None:
    """Set it back to what ``read_generator`` returned."""
    if hasattr(source, "setstate"):
        source.setstate(state)
    elif hasattr(source, "set_state"):
        with raw():
            is_torch = isinstance(source, type(torch.default_generator))
            source.set_state(torch.tensor([*state], dtype=torch.uint8) if is_torch else state)
    else:
        getattr(source, "bit_generator", source).state = state
