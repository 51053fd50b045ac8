"""Values on the host that code reads; a graph keeps those of its capture.

The source of a function gives the names that it uses (``self.n``, ``config["lr"]``, a global), and
its frame the objects behind them. ``HostReads.snapshot`` looks all of them up; the difference of
two snapshots says which values changed, and which line reads them.
"""

from __future__ import annotations

import collections
import enum
import gc
import itertools
import random
import sys
import threading
import types
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from cgtool.model.capture import Frame
from cgtool.observe.frames import is_internal
from cgtool.observe.source import ATTRIBUTES, Step, Use, uses_of
from cgtool.observe.tensors import has_memory, on_host
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import (
    MODULE_TABLES,
    children_of,
    no_torch_function,
    version_of_tensor,
)

_SMALL = 64
"""CPU tensors of up to this many elements are compared by value."""
_MANY = 1000
"""Of so many things that are no numbers in a container it is compared what they are."""
_HELPERS = 4
"""How deep calls of helpers are followed."""
SIZE = ""
"""Stands for the number of things in a container where a key is expected."""
MISSING = object()
"""The value of a name, attribute or item that does not exist."""


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


class _Content(NamedTuple):
    """What a comparison of containers needs."""

    size: int
    numbers: list[Any]
    others: tuple[Any, ...]
    named: dict[str, Any]
    """By their keys in a dict, if these are strings."""


@dataclass(frozen=True)
class Watched:
    """One name in one function, and how to look it up again."""

    use: Use
    frame: Frame
    """The line that uses it."""
    root: Callable[[], Any]
    owner: int
    """Identity of the root object: the same line serves many modules."""
    key: Any
    """The same for all names of one value; None if it is nowhere yet."""
    prefixes: tuple[Any, ...] = ()
    """The keys of what it is reached through: of ``self`` and ``self.config``."""

    def look_up(self) -> Any:
        return resolve(self.root(), self.use.steps)


@dataclass(frozen=True)
class Change:
    """A value that differs between two snapshots."""

    watched: Watched
    before: Value
    after: Value

    @property
    def text(self) -> str:
        return f"{self.watched.use.text}: {self.before.shown}, then {self.after.shown}"

    def spares(self, key: str) -> bool:
        """Whether it is the change of a container whose items of this key, or size, are as they
        were."""
        names = _differing(self.before.content, self.after.content)
        return key not in names and (key == SIZE or None not in names)


Snapshot = dict[int, Value]
"""By index into ``HostReads.watched``."""
_Name = tuple[int, str, tuple[Step, ...]]
"""A name in a function: id of its code, root and steps."""


class HostReads:
    """The values that the added frames read."""

    def __init__(self) -> None:
        self.watched: list[Watched] = []
        self._named: dict[_Name, list[Watched]] = {}
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

    def add_locals(self, frame: types.FrameType) -> None:
        """Add the attributes of objects that the local names of a function hold at its end."""
        code = frame.f_code
        uses = [use for use in uses_of(code, "local") if use.steps]
        values = frame.f_locals if uses else {}
        for use in uses:
            value = values.get(use.root)
            known = id(use), id(value)
            if value is None or known in self._known or isinstance(value, torch.Tensor):
                continue
            self._known.add(known)
            root = weakly(value)
            if root is None and _has_slots_alone(value):
                root = self._reference(value)
            if root is not None:
                self._kept.append(use)
                self._add(code, use, root, id(value))

    def keys_of(self, code: types.CodeType, root: str, steps: tuple[Step, ...]) -> list[Any]:
        """The keys of a name in a function, for all objects and closures that it ran with."""
        watched = self._named.get((id(code), root, steps), ())
        return [each.key for each in watched if each.key is not None]

    def prefixes_of(self, code: types.CodeType, root: str, steps: tuple[Step, ...]) -> set[Any]:
        """The keys of what a name in a function is reached through."""
        watched = self._named.get((id(code), root, steps), ())
        return {key for each in watched for key in each.prefixes if key is not None}

    def values_of(self, code: types.CodeType, root: str, steps: tuple[Step, ...]) -> list[Any]:
        """What a name in a function holds now, for all objects and closures that it ran with."""
        return [each.look_up() for each in self._named.get((id(code), root, steps), ())]

    def contents_of(self, code: types.CodeType, root: str, steps: tuple[Step, ...]) -> list[Any]:
        """The keys of what is in the containers behind a name in a function."""
        values = self.values_of(code, root, steps)
        return [("contents", id(value)) for value in values if isinstance(value, _CONTAINERS)]

    def _add(self, code: types.CodeType, use: Use, root: Callable[[], Any], owner: int) -> None:
        keys: list[Any] = [(owner, use.root)]
        base = root()
        for kind, part in use.steps:
            is_part = isinstance(base, torch.nn.Module) and is_internal(type(base).forward.__code__)
            if base is None or base is MISSING:
                keys.append(None)
            elif is_immutable(base) and keys[-1] is not None:
                # It is replaced as a whole: its place is where it is kept.
                keys.append((*keys[-1], part))
            else:
                keys.append(("module" if is_part else kind, id(base), part))
            base = resolve(base, ((kind, part),))
        frame = Frame(code.co_filename, use.line, code.co_qualname)
        watched = Watched(use, frame, root, owner, keys[-1], tuple(keys[:-1]))
        self.watched.append(watched)
        self._named.setdefault((id(code), use.root, use.steps), []).append(watched)

    def _add_code(
        self, code: types.CodeType, names: dict[str, Any], values: dict[str, Any], depth: int
    ) -> None:
        cells: list[dict[str, types.CellType]] | None = None
        for use in uses_of(code):
            roots: list[tuple[Callable[[], Any], int]] = []
            if use.scope == "global":
                if use.root in names:
                    roots.append((partial(names.get, use.root, MISSING), id(names)))
            elif use.scope == "argument":
                value = values.get(use.root, MISSING)
                # Tensor arguments are the static inputs.
                if value is not MISSING and not isinstance(value, torch.Tensor):
                    roots.append((self._reference(value), id(value)))
            else:
                if cells is None:
                    cells = list(_cells(code, values))
                shared = {id(cell): cell for found in cells if (cell := found.get(use.root))}
                roots += [(_content_of(cell), number) for number, cell in shared.items()]
            for root, owner in roots:
                if use.called and depth:
                    self._follow(resolve(root(), use.steps), depth - 1)
                self._add(code, use, root, owner)

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
        weak = weakly(value)
        if weak is not None:
            return weak
        self._kept.append(value)
        return lambda: value

    def snapshot(self) -> Snapshot:
        """The value of every name now."""
        snapshot: Snapshot = {}
        for index, watched in enumerate(self.watched):
            value = (_attributes if watched.use.steps[-1:] == (ATTRIBUTES,) else _reduce)(
                watched.look_up()
            )
            if value is not None:
                snapshot[index] = value
        return snapshot

    def changes(self, before: Snapshot, after: Snapshot) -> Iterator[Change]:
        """The values that differ, each line and name once, in the order they were added."""
        reported: set[tuple[str, int, str, int]] = set()
        written = {watched.key for watched in self.watched if watched.use.written}
        for index, old in before.items():
            new = after.get(index)
            if new is None or (new.kind == old.kind and new.content == old.content):
                continue
            watched = self.watched[index]
            key = watched.frame.file, watched.frame.line, watched.use.text, watched.owner
            change: Change | None = Change(watched, old, new)
            if old.kind == "attributes":
                change = _by_computed_names(watched, old, new, written)
            if change is not None and key not in reported:
                reported.add(key)
                yield change

    def written_by_threads(self) -> set[Any]:
        """The keys of values that the running functions of other threads write."""
        others = HostReads()
        for number, frame in sys._current_frames().items():
            running: types.FrameType | None = frame if number != threading.get_ident() else None
            while running is not None:
                if not is_internal(running.f_code):
                    others.add_frame(running)
                elif running.f_code.co_filename == threading.__file__:
                    # The function of a `Timer`, which is still to be called.
                    thread = running.f_locals.get("self")
                    others._follow(getattr(thread, "function", None), _HELPERS)
                running = running.f_back
        return {watched.key for watched in others.watched if watched.use.written}


def _by_computed_names(
    watched: Watched, old: Value, new: Value, written: set[Any]
) -> Change | None:
    """The change of the attributes of an object that nothing but a computed name assigns."""
    if watched.key not in written:
        return None
    changed = [
        name
        for name, value in new.content.items()
        if value != old.content.get(name, MISSING) and (*watched.key[:2], name) not in written
    ]
    before, after = (
        Value("number", None, ", ".join(f"{name}={values.get(name)}" for name in changed))
        for values in (old.content, new.content)
    )
    return Change(watched, before, after) if changed else None


def weakly(value: Any) -> Callable[[], Any] | None:
    """A weak reference, or None for what has none: also for streams and events, because the
    destructors of those of CUDA leave weak references dangling (seen in PyTorch 2.11)."""
    if isinstance(value, torch.Event | torch.Stream):
        return None
    try:
        return weakref.ref(value)
    except TypeError:
        return None


def _content_of(cell: types.CellType) -> Callable[[], Any]:
    def content() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING

    return content


def _cells(code: types.CodeType, values: dict[str, Any]) -> Iterator[dict[str, types.CellType]]:
    """The cells of the functions that run this code, which frames do not have. Of several
    functions, those whose cells hold what a frame's names hold."""
    candidates = [
        dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
        for function in gc.get_referrers(code)
        if isinstance(function, types.FunctionType) and function.__code__ is code
    ]
    matching = [
        cells
        for cells in candidates
        if all(_content_of(cell)() is values.get(name, MISSING) for name, cell in cells.items())
    ]
    yield from matching or candidates


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
    is_array = type(value).__module__ == "numpy" and getattr(value, "ndim", 0) > 0
    is_sequence = is_array or isinstance(value, list | tuple | collections.deque)
    if is_sequence and isinstance(key, int):
        return value[key] if -len(value) <= key < len(value) else MISSING
    if isinstance(value, torch.nn.ModuleList | torch.nn.Sequential) and isinstance(key, int):
        return children_of(value).get(str(key), MISSING)
    return MISSING


def _attribute(value: Any, name: str) -> Any:
    """What Python finds, without running the user's code: properties are not called. The first
    of: a field in C of its type (a slot, a field of a named tuple), an attribute of its own, one of
    its types."""
    if name == "__class__":
        return type(value)
    table = _table_of(value)
    if name == "__dict__":
        return table
    is_type = isinstance(value, type)
    member = next(
        (base.__dict__[name] for base in type(value).__mro__ if name in base.__dict__), MISSING
    )
    if isinstance(member, _FIELDS) and not is_type:
        try:
            return member.__get__(value)
        except AttributeError:
            return MISSING
    for part in value.__mro__ if is_type else ():
        if name in part.__dict__:
            return _bound(part.__dict__[name], None, value)
    if isinstance(table, dict):
        if name in table:
            return table[name]
        if isinstance(value, torch.nn.Module):
            for part in MODULE_TABLES:
                inner = table.get(part) or {}
                if name in inner:
                    return inner[name]
    if is_type or isinstance(value, types.ModuleType):
        return MISSING
    return _bound(member, value, type(value))


_FIELDS = types.MemberDescriptorType, type(vars(collections.namedtuple("_Pair", "a"))["a"])
_BY_PYTHON = types.FunctionType, classmethod, staticmethod


def _bound(member: Any, instance: Any, owner: type) -> Any:
    """An attribute of a type as its instance, or the type itself, has it."""
    if isinstance(member, _BY_PYTHON):
        return member.__get__(instance, owner)
    return MISSING if hasattr(type(member), "__get__") else member


def _table_of(value: Any) -> Any:
    """The ``__dict__`` of an object: for `threading.local` that of the running thread."""
    for base in type(value).__mro__:
        find = base.__dict__.get("__getattribute__")
        if isinstance(find, types.WrapperDescriptorType):
            try:
                return find(value, "__dict__")
            except Exception:  # slots, builtins, and objects whose attributes raise
                return MISSING
    return MISSING


def is_immutable(value: Any) -> bool:
    """Whether its attributes and items cannot be assigned to: a tuple, a frozen dataclass."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    return isinstance(value, tuple) or bool(getattr(parameters, "frozen", False))


def _has_slots_alone(value: Any) -> bool:
    """Whether it is an object whose attributes are slots with values of the host, which may be kept
    alive."""
    slots = [
        _attribute(value, name)
        for base in type(value).__mro__
        for name, member in base.__dict__.items()
        if isinstance(member, types.MemberDescriptorType)
    ]
    reduced = [_reduce(slot) for slot in slots if slot is not MISSING]
    return bool(slots) and not any(
        each is None or each.has_tensors or each.kind == "tensor" for each in reduced
    )


def _attributes(table: Any) -> Value | None:
    """The numbers among the attributes of an object."""
    if not isinstance(table, dict | types.MappingProxyType):
        return None
    numbers = {
        name: value.content
        for name, part in table.items()
        if (value := _reduce(part)) is not None and value.kind == "number"
    }
    return Value("attributes", numbers, "")


def _reduce(value: Any, depth: int = 2) -> Value | None:
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return Value("number", value, _short(value))
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, enum.Enum):
        return Value("number", value.name, str(value))
    if isinstance(value, ContextVar):
        return _reduce(value.get(None), depth)
    if isinstance(value, _CONTAINERS):
        return _container(value, depth)
    generator = random_state(value)
    if generator is not None:
        return Value("random", generator, "a state of the generator")
    if isinstance(value, types.GeneratorType) or type(value).__module__ == "itertools":
        if isinstance(value, itertools.repeat):
            return None
        # It moves on whenever it is read.
        return Value("iterator", object(), _short(value))
    if type(value) in _ITERATORS:
        return Value("iterator", object(), type(value).__name__)
    if isinstance(value, types.MethodType):
        return Value("function", (id(value.__func__), id(value.__self__)), _short(value))
    if isinstance(value, types.FunctionType | torch.nn.Module):
        return Value("function", id(value), getattr(value, "__name__", type(value).__name__))
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and hasattr(value, "tobytes"):
        content = value.dtype.str, zlib.crc32(value.tobytes())
        return Value("number", content, str(value)[:60] if value.size <= _SMALL else "an array")
    return None


_NUMBERS = frozenset((bool, int, float, str))
_CONTAINERS = list, tuple, dict, set, frozenset, collections.deque
_ITERATORS = frozenset(
    map(
        type,
        (
            iter([]), iter(()), iter({}), iter({}.values()), iter({}.items()), iter(range(1)),
            iter(set()), iter(""), reversed([]), zip(), enumerate(()), map(len, ()),
            filter(None, ()),
        ),
    )
)  # fmt: skip


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) < 60 else shown[:57] + "..."


def _container(value: Any, depth: int) -> Value:
    """Its size, the numbers in it, and the other values of the host."""
    items = list(value.items()) if isinstance(value, dict) else [(None, part) for part in value]
    parts = [part for key, part in items if type(key) is not str]
    if isinstance(value, dict):
        parts += [key for key, _ in items if type(key) is not str]
    has_tensors = any(isinstance(part, torch.Tensor) for item in items for part in item)
    numbers = [part for part in parts if type(part) in _NUMBERS]
    if depth and 0 < len(items) == len(numbers) <= _SMALL and isinstance(value, list | tuple):
        return Value("number", tuple(value), _short(value))
    others = [part for part in parts if type(part) not in _NUMBERS]
    content = _Content(
        len(items),
        numbers,
        tuple(_part(part, depth) for part in others[: _MANY if depth else 0]),
        {
            key: part if type(part) in _NUMBERS else _part(part, depth)
            for key, part in items[: _MANY if depth else 0]
            if type(key) is str
        },
    )
    return Value("container", content, f"{len(items)} items", has_tensors)


def _part(value: Any, depth: int) -> Any:
    reduced = _reduce(value, depth - 1)
    if reduced is None or reduced.kind not in ("number", "container"):
        return None if reduced is None else reduced.kind
    return reduced.content


def _differing(before: Any, after: Any) -> frozenset[str | None]:
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
            names |= {key, *(_differing(old, new) if isinstance(new, _Content) else ())}
    for old, new in zip(before.others, after.others, strict=False):
        names |= _differing(old, new)
    return frozenset(names)


def random_state(value: Any) -> Any:
    """The state of a generator of random numbers of Python or NumPy, or of the one that a function
    belongs to; None for anything else."""
    owner = value
    if isinstance(value, types.MethodType | types.BuiltinMethodType) or _is_cython(value):
        owner = getattr(value, "__self__", None)
    if isinstance(owner, random.SystemRandom):
        return object()
    if isinstance(owner, random.Random):
        return owner.getstate()
    if not type(owner).__module__.startswith("numpy.random") or isinstance(owner, type):
        return None
    generator: Any = owner
    bits = getattr(generator, "bit_generator", None)
    return repr(generator.get_state() if bits is None else bits.state)


def _is_cython(value: Any) -> bool:
    return type(value).__name__ == "cython_function_or_method"


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
    return Value("tensor", (shape, address), f"{list(shape)} at {address:#x}")
