"""A value on the host, reduced to what a comparison of two moments needs."""

from __future__ import annotations

import array
import ast
import collections
import copy
import ctypes
import datetime
import decimal
import enum
import fractions
import gc
import inspect
import itertools
import operator
import queue
import random
import threading
import types
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch

from cgtool.observe.frames import SUSPENDED, locals_of, suspended_frame
from cgtool.observe.lookup import MISSING, Identity, attribute_of, is_gone, resolve
from cgtool.observe.source import functions_of, inner_nodes
from cgtool.observe.suspended import comes_back, names_read_later
from cgtool.observe.tensors import has_memory, on_host
from cgtool.observe.uses import ATTRIBUTES, Use, uses_of
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import (
    MODULE_TENSORS,
    attributes_of_script,
    no_torch_function,
    version_of_tensor,
)
from cgtool.torch_compat.storages import StorageRef

_SMALL = 64
"""CPU tensors of up to this many elements are compared by value."""
_MANY = 1000
"""How many things in a container that are not numbers are compared by what they are."""
NUMBERS = frozenset((bool, int, float, str))
_PLAIN = frozenset(
    (
        datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal,
        fractions.Fraction, range, slice,
    )
)  # fmt: skip
"""Types of Python whose values do not change, and are compared as they are."""
_COPIED: tuple[type[Any], ...] = type(iter([])), type(iter(())), type(iter(range(0)))
"""Iterators whose copies move on by themselves."""
_PASSING_ON = map, zip, filter
"""Iterators that keep nothing but others, which they move on."""
_ORDERED = list, tuple, collections.deque
CONTAINERS = *_ORDERED, dict, set, frozenset
SHARED = queue.Queue, queue.SimpleQueue, threading.Event
"""What threads wait for each other with: that others change them shows where they are read."""
SIZE = ""
"""Stands for the number of things in a container where a key is expected."""
KEYS = "\0keys"
"""Stands there for which keys a container has: what ``key in kept`` is about."""
PRESENCE = "\0presence"
"""Stands there for what is None: a value, or an item of it."""
ITSELF = "\0itself"
"""The same for the value that is compared with None itself, and nothing in it."""
ORDER = "\0order"
"""Stands there for which things are in a container, in which order, whatever changes in these."""


@dataclass(frozen=True)
class Value:
    """A value, reduced to what a comparison needs."""

    kind: str
    """``number`` (or text, or None), ``host tensor``, ``tensor``, ``container``, ``function`` (or
    module), ``random`` (a generator of random numbers), ``iterator``."""
    content: Any
    shown: str
    has_tensors: bool = False
    """Whether it is a container with tensors in it."""
    addresses: tuple[int, ...] = ()
    """Of the tensor on the device that it is, or of those that it holds, in order."""
    order: tuple[Any, ...] | None = field(default=None, compare=False)
    """Of a container: its items in order, those that can change by identity."""
    lasts: bool = True
    """Of an iterator: whether it returns the same each time, as far as it shows."""

    def goes_on_as(self, earlier: Value | None) -> bool:
        """Whether an iterator returns in each call what it returned in the last one, before which
        it was ``earlier``. One that had not begun was another one, whatever it is now."""
        if self.lasts or earlier is None:
            return self.lasts
        return (self.content, self.addresses) == (earlier.content, earlier.addresses)


class _Content(NamedTuple):
    """What a comparison of containers needs."""

    size: int
    numbers: list[Any]
    others: tuple[Any, ...]
    named: dict[str, Any]
    """By their keys in a dict, if these are strings."""


def has_only_slots(value: Any) -> bool:
    """Whether it is an object whose attributes are slots with values of the host, which may be kept
    alive."""
    slots = [
        attribute_of(value, name)
        for base in type(value).__mro__
        for name, member in base.__dict__.items()
        if isinstance(member, types.MemberDescriptorType)
    ]
    reduced = [value_of(slot) for slot in slots if slot is not MISSING]
    return bool(slots) and not any(
        each is None or each.has_tensors or each.kind == "tensor" for each in reduced
    )


def attributes_of(table: Any) -> Value | None:
    """The numbers among the attributes of an object."""
    if not isinstance(table, dict | types.MappingProxyType):
        return None
    numbers = {
        name: value.content
        for name, part in table.items()
        if (value := value_of(part)) is not None and value.kind == "number"
    }
    # A module keeps its parameters and buffers in dicts of their own.
    held = [*table.values()]
    for name in MODULE_TENSORS:
        held += table.get(name, {}).values()
    return Value("attributes", numbers, "", addresses=_addresses_of(held))


def _addresses_of(values: Iterable[Any]) -> tuple[int, ...]:
    """Of the tensors on the device among some values."""
    tensors = (value for value in values if isinstance(value, torch.Tensor) and has_memory(value))
    with unobserved(), no_torch_function():
        return tuple(tensor.data_ptr() for tensor in tensors if not on_host(tensor))


def value_of(value: Any, depth: int = 2) -> Value | None:
    """None for what is not compared, such as objects, whose attributes have names of their own.

    ``depth`` limits how deep containers are compared.
    """
    if is_gone(value):
        return None
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return Value("number", _comparable(value), _short(value))
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, enum.Enum):
        return Value("number", value.name, str(value))
    if isinstance(value, ContextVar):
        return value_of(value.get(None), depth)
    if isinstance(value, CONTAINERS):
        return _container(value, depth)
    generator = random_state(value)
    if generator is not None:
        return Value("random", generator, "a state of the generator")
    if isinstance(value, SUSPENDED):
        return _suspended(value, depth)
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        return _iterator(value, depth)
    if isinstance(value, types.MethodType):
        # Its `repr` has that of its owner, which reads the values of a tensor.
        return Value("function", _Method(value), value.__name__)
    if isinstance(value, torch.jit.ScriptModule):
        script = Identity(value), attributes_of_script(value)
        return Value("function", script, "a scripted module")
    if isinstance(value, types.FunctionType | torch.nn.Module):
        name = getattr(value, "__name__", type(value).__name__)
        return Value("function", _Callable(Identity(value), _what_runs(value)), name)
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and hasattr(value, "tobytes"):
        content = value.dtype.str, zlib.crc32(value.tobytes())
        return Value("number", content, str(value)[:60] if value.size <= _SMALL else "an array")
    if module.startswith("_") and hasattr(type(value), "hexdigest"):
        # An object of `hashlib`; those of its functions with results of any length say 0.
        return Value("number", value.hexdigest(*([32] if value.digest_size == 0 else [])), "a hash")
    if type(value) in _PLAIN:
        return Value("number", value, _short(value))
    if isinstance(value, bytearray | array.array | ctypes.Array):
        return Value("number", zlib.crc32(bytes(value)), _short(value))
    return None


def numbers_of(values: Any) -> Value | None:
    """Of a tuple of numbers, however many."""
    if not isinstance(values, tuple):
        return None
    return Value("number", tuple(map(_comparable, values)), _short(values[:_SMALL]))


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """A value, and what it holds as items or attributes, each with how it is written behind a name;
    of a module nothing but itself. Weak proxies of what is gone are left out."""
    if is_gone(value):
        return iter(())
    return (pair for pair in _parts_of(value) if not is_gone(pair[1]))


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    yield "", value
    if isinstance(value, torch.Tensor | torch.nn.Module | type | types.ModuleType):
        return
    if isinstance(value, list | tuple):
        items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        yield from ((f"[{key}]", part) for key, part in enumerate(itertools.islice(items, _SMALL)))
    if isinstance(value, dict):
        named = itertools.islice(dict.items(value), _SMALL)
        yield from ((f"[{key!r}]", part) for key, part in named if type(key) in (int, str))
    fields = getattr(type(value), "_fields", ()) if isinstance(value, tuple) else ()
    yield from ((f".{name}", attribute_of(value, name)) for name in fields)
    table = attribute_of(value, "__dict__")
    held = itertools.islice(table.items(), _SMALL) if isinstance(table, dict) else ()
    yield from ((f".{name}", part) for name, part in held)


def array_address(value: Any) -> int | None:
    """The address of the first element of a NumPy array; None for anything else."""
    if type(value).__module__ != "numpy" or not hasattr(value, "ctypes"):
        return None
    return int(value.ctypes.data)


def _iterator(value: Iterator[Any], depth: int) -> Value | None:
    """What an iterator in C returns next."""
    if not _moves(value):
        return None
    if isinstance(value, itertools.cycle):
        turn = _turn_of(value)
        return Value("iterator", turn or object(), _short(value), lasts=len(turn or ()) == 1)
    if type(value) in _PASSING_ON:
        _, arguments, *_ = cast(Any, value.__reduce__())
        parts = [value_of(part, depth - 1) for part in arguments if _moves(part)]
        content = tuple(object() if part is None else part.content for part in parts)
        lasts = all(part is not None and part.lasts for part in parts)
        return Value("iterator", content, _short(value), lasts=lasts)
    # It moves on whenever it is read.
    return Value("iterator", object(), _short(value), lasts=False)


def _moves(value: Any) -> bool:
    is_endless = isinstance(value, itertools.repeat) and operator.length_hint(value, -1) < 0
    return isinstance(value, Iterator) and not is_endless


def _turn_of(cycle: itertools.cycle[Any]) -> tuple[Identity, ...] | None:
    """What a cycle returns next, until it has come around; None if it does not say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            reduced: Any = cycle.__reduce__()
            _, (rest,), (items, is_later) = reduced
        except TypeError:  # Python 3.14 and newer
            return None
    if type(rest) not in _COPIED:
        return None
    ahead = [*itertools.islice(copy.copy(rest), _MANY)]
    if len(ahead) + len(items) >= _MANY:
        return None
    # In its first turn it keeps what it has returned, later all items.
    before = items[: len(items) - len(ahead)] if is_later else items
    return tuple(map(Identity, (*ahead, *before)))


def _suspended(value: Any, depth: int) -> Value:
    """Where the frame of a generator or coroutine is suspended, and what it would go on with.

    Of tensors only that they are there, as in containers: an op that reads another one shows it.
    """
    content: list[Any] = []
    addresses: tuple[int, ...] = ()
    shown, lasts = _short(value), True
    while isinstance(value, SUSPENDED):
        prefix = next(part for part in ("gi_", "cr_", "ag_") if hasattr(value, f"{part}frame"))
        frame = suspended_frame(value)
        if frame is None or getattr(value, f"{prefix}running"):
            # It has ended, or its values are not yet those that it keeps.
            content.append("ended" if frame is None else object())
            lasts = False
            break
        live = names_read_later(frame)
        names = {name: part for name, part in locals_of(frame).items() if name in live}
        awaited = getattr(value, "gi_yieldfrom" if prefix == "gi_" else f"{prefix}await")
        known = {id(part) for part in (*names.values(), awaited) if part is not None}
        parts = {
            **names,
            **{use.text: _read_by(frame, use, names) for use in _uses_in(frame.f_code)},
            # A loop keeps its iterator, which has no name.
            **{
                str(number): part
                for number, part in enumerate(gc.get_referents(value))
                if isinstance(part, Iterator) and id(part) not in known
            },
        }
        addresses += _addresses_of(parts.values())
        kept = {name: _kept(part, depth) for name, part in parts.items()}
        content.append((Identity(frame.f_code), frame.f_lasti, kept))
        lasts &= all(_lasts(part, depth) for part in (*parts.values(), awaited))
        # What it waits for ends first.
        lasts &= awaited is not None or comes_back(frame)
        value = awaited
    if isinstance(value, Iterator):
        content.append(_kept(value, depth))
    return Value("iterator", tuple(content), shown, addresses=addresses, lasts=lasts)


def _uses_in(code: types.CodeType) -> list[Use]:
    """What a function reads beside its local names, and behind them."""
    uses = (*uses_of(code), *uses_of(code, "local"))
    return [use for use in uses if use.steps[-1:] != (ATTRIBUTES,)]


def _read_by(frame: types.FrameType, use: Use, names: dict[str, Any]) -> Any:
    """What a name in a suspended frame leads to."""
    return resolve(names.get(use.root, frame.f_globals.get(use.root, MISSING)), use.steps)


def _kept(value: Any, depth: int) -> Any:
    """What the comparison of a frame needs of one of its values."""
    reduced = value_of(value, depth - 1) if depth else None
    is_compared = reduced is not None and reduced.kind not in ("tensor", "function")
    return reduced.content if reduced is not None and is_compared else type(value)


def _lasts(value: Any, depth: int) -> bool:
    """Whether a value that a frame keeps stays as it is: an iterator may move on."""
    if not _moves(value):
        return True
    reduced = value_of(value, depth - 1) if depth else None
    return reduced is not None and reduced.lasts


class _Callable(NamedTuple):
    """A function or a module, and what runs when it is called."""

    itself: Identity
    runs: Any


def _what_runs(value: types.FunctionType | torch.nn.Module) -> Any:
    """The class of a module, whose attributes have names of their own, or the code of a function
    that keeps no values; None for another function."""
    if isinstance(value, torch.nn.Module):
        return type(value)
    keeps = value.__defaults__ or value.__kwdefaults__ or value.__closure__
    return None if keeps else value.__code__


class _Method:
    """A bound method. Two are equal if they are of one object, or of two in which they read the
    same, or if one object is gone: what each call makes again (`self.loss.backward`) is watched by
    a name of its own."""

    def __init__(self, method: types.MethodType) -> None:
        self.function, self.owner = Identity(method.__func__), Identity(method.__self__)
        self._is_tensor = isinstance(method.__self__, torch.Tensor)
        self._read = _read_of_owner(method)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Method)
            and self.function == other.function
            and (
                self.owner == other.owner
                or (self._is_tensor and other._is_tensor)
                or not (self.owner.is_alive and other.owner.is_alive)
                or (self._read is not None and self._read == other._read)
            )
        )

    def __hash__(self) -> int:
        return hash(self.function)


def _read_of_owner(method: types.MethodType) -> dict[str, Any] | None:
    """What a method reads of its object: the class, and attributes, also in other methods that it
    calls there. None if it may read more. All tensors count as equal: that ops read other memory
    shows elsewhere."""
    owner, kind = method.__self__, type(method.__self__)
    if not isinstance(method.__func__, types.FunctionType):
        return None
    functions = [method.__func__]
    read: dict[str, Any] = {"__class__": kind}
    for function in functions:
        names = _attributes_of_self(function.__code__)
        if names is None:
            return None
        for name in names:
            member = inspect.getattr_static(kind, name, None)
            if isinstance(member, types.FunctionType):
                functions += [] if member in functions else [member]
                continue
            if hasattr(member, "__get__") and not isinstance(member, types.MemberDescriptorType):
                return None
            value = attribute_of(owner, name)
            if value is MISSING:
                return None
            is_tensor = isinstance(value, torch.Tensor)
            read[name] = None if is_tensor else value_of(value) or Identity(value)
    return read


def _attributes_of_self(code: types.CodeType) -> set[str] | None:
    """The attributes that a method names; None if it does more with its object than return it."""
    functions = functions_of(code) if code.co_argcount else ()
    own = code.co_varnames[0] if functions else ""
    if not functions or own in code.co_cellvars:
        return None
    used = 0
    names: set[str] = set()
    for node in itertools.chain.from_iterable(map(inner_nodes, functions)):
        used += isinstance(node, ast.Name) and node.id == own
        if isinstance(node, ast.Attribute | ast.Return) and getattr(node.value, "id", "") == own:
            used -= 1
            names |= {node.attr} if isinstance(node, ast.Attribute) else set()
    return None if used else names


def _comparable(number: Any) -> Any:
    """A number or text that is equal to itself, which NaN is not."""
    return number if number == number else repr(number)


def number_text(value: float) -> str:
    """A number without what rounding has left: ``0.01`` for 0.010000000000000002."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{value:.10g}"


_LONGEST = 12
"""Characters of a number that is shown as it is."""


def texts_of(before: Any, after: Any) -> tuple[str, str]:
    """Two values that differ, as text; numbers by ``number_text``, unless they look the same so."""
    texts = [number_text(each) if type(each) is float else str(each) for each in (before, after)]
    return (texts[0], texts[1]) if texts[0] != texts[1] else (str(before), str(after))


def _short(value: Any) -> str:
    shown = number_text(value) if type(value) is float else repr(value)
    return shown if len(shown) < 60 else shown[:57] + "..."


def _container(value: Any, depth: int) -> Value:
    """Its size, the numbers in it, and the other values of the host."""
    items = list(value.items()) if isinstance(value, dict) else [(None, part) for part in value]
    parts = [part for key, part in items if type(key) is not str]
    if isinstance(value, dict):
        parts += [key for key, _ in items if type(key) is not str]
    has_tensors = any(True for _ in _tensors_of(itertools.chain(*items), depth))
    numbers = [_comparable(part) for part in parts if type(part) in NUMBERS]
    if depth and 0 < len(items) == len(numbers) <= _SMALL and isinstance(value, _ORDERED):
        return Value("number", tuple(numbers), _short(value))
    others = [part for part in parts if type(part) not in NUMBERS]
    content = _Content(
        len(items),
        numbers,
        tuple(_part(part, depth) for part in others[: _MANY if depth else 0]),
        {
            key: _comparable(part) if type(part) in NUMBERS else _part(part, depth)
            for key, part in items[: _MANY if depth else 0]
            if type(key) is str
        },
    )
    values = (part for _, part in items[:_MANY])
    held = _addresses_of(_tensors_of(values, depth)) if has_tensors else ()
    order = tuple(
        (_own(key), None if type(key) is str and type(part) in NUMBERS else _own(part))
        for key, part in items[:_MANY]
    )
    return Value("container", content, f"{len(items)} items", has_tensors, held, order)


def _own(part: Any) -> Any:
    """What tells an item from others, whatever changes in it, without a call of its ``__eq__``."""
    if type(part) in NUMBERS:
        return _comparable(part)
    is_changed_in_place = not issubclass(type(part), tuple | frozenset)
    return id(part) if is_changed_in_place else _part(part, 1)


def _tensors_of(parts: Iterable[Any], depth: int) -> Iterator[torch.Tensor]:
    """The tensors among the parts of a container, and in containers among them."""
    for part in parts:
        if is_gone(part):
            continue
        if isinstance(part, torch.Tensor):
            yield part
        elif depth > 0 and isinstance(part, CONTAINERS):
            within = part.values() if isinstance(part, dict) else part
            yield from _tensors_of(itertools.islice(within, _MANY), depth - 1)


def _part(value: Any, depth: int) -> Any:
    reduced = value_of(value, depth - 1)
    if reduced is None or reduced.kind not in ("number", "container"):
        return None if reduced is None else reduced.kind
    return reduced.content


def runs_the_same(before: Value, after: Value) -> bool:
    """Whether a function or a module was replaced by one that runs the same code."""
    old, new = before.content, after.content
    if not isinstance(old, _Callable) or not isinstance(new, _Callable):
        return False
    return old.runs is not None and old.runs is new.runs


def has_same_keys(before: Any, after: Any) -> bool:
    """Whether two containers have items of the same keys, whatever these are, None apart."""
    if not isinstance(before, _Content) or not isinstance(after, _Content):
        return False
    old, new = before.named, after.named
    return (
        (before.size, before.numbers, old.keys()) == (after.size, after.numbers, new.keys())
        and all((old[key] is None) == (new[key] is None) for key in new)
        and [each is None for each in before.others] == [each is None for each in after.others]
    )


def numbers_differ(before: Any, after: Any) -> bool:
    """Whether a number is another one, or a number in a container that has the same things."""
    if isinstance(before, _Content) and isinstance(after, _Content):
        if before.named.keys() != after.named.keys() or before.size != after.size:
            return False
        is_moved = sorted(map(repr, before.numbers)) != sorted(map(repr, after.numbers))
        pairs = zip(before.others, after.others, strict=False)
        named = ((before.named[key], after.named[key]) for key in after.named)
        return is_moved or any(itertools.starmap(numbers_differ, (*pairs, *named)))
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        return sorted(map(repr, before)) != sorted(map(repr, after))
    return before != after and type(before) in (int, float) and type(after) in (int, float)


def differing(before: Any, after: Any) -> frozenset[str | None]:
    """The keys under which two containers differ, those in them included; None for whatever is not
    under a key, ``SIZE`` for the number of things in one."""
    if before == after:
        return frozenset()
    if not isinstance(before, _Content) or not isinstance(after, _Content):
        are_tuples = isinstance(before, tuple) and isinstance(after, tuple)
        return frozenset((None,) if are_tuples and len(before) == len(after) else (None, SIZE))
    names: set[str | None] = set()
    if before.size != after.size:
        names.add(SIZE)
    if before.numbers != after.numbers or len(before.others) != len(after.others):
        names.add(None)
    for key in before.named.keys() | after.named.keys():
        old, new = before.named.get(key), after.named.get(key)
        if old != new:
            names |= {key, *(differing(old, new) if isinstance(new, _Content) else ())}
    for old, new in zip(before.others, after.others, strict=False):
        names |= differing(old, new)
    return frozenset(names)


def random_state(value: Any) -> Any:
    """The state of a generator of random numbers of Python or NumPy, or of the one that a function
    belongs to; None for anything else."""
    owner = value
    is_method = isinstance(value, types.MethodType | types.BuiltinMethodType)
    if is_method or type(value).__name__ == "cython_function_or_method":
        owner = getattr(value, "__self__", None)
    if isinstance(owner, random.SystemRandom):
        return object()
    if isinstance(owner, random.Random):
        return owner.getstate()
    if not type(owner).__module__.startswith("numpy.random") or isinstance(owner, type):
        return None
    generator: Any = owner
    generator = getattr(generator, "bit_generator", generator)
    # A bit generator and a sequence of seeds have ``state``, the old `RandomState` a method.
    return repr(generator.state if hasattr(generator, "state") else generator.get_state())


def _tensor(value: torch.Tensor) -> Value | None:
    if not has_memory(value):
        return None
    shape = tuple(value.shape)
    with unobserved(), no_torch_function():
        if on_host(value):
            content = (
                value.detach().tolist() if value.numel() <= _SMALL else version_of_tensor(value)
            )
            return Value("host tensor", (shape, repr(content)), repr(content)[:60])
        address = value.data_ptr()
        storage = StorageRef(value)
    shown = f"{list(shape)} at {address:#x}"
    return Value("tensor", (shape, address, storage), shown, addresses=(address,))
