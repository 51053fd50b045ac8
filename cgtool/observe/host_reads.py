"""Values on the host that code reads; a graph keeps those of its capture.

The source of a function gives the names that it uses (``self.n``, ``config["lr"]``, a global), and
its frame the objects behind them. ``HostReads.snapshot`` looks all of them up; the difference of
two snapshots says which values changed, and which line reads them.
"""

from __future__ import annotations

import inspect
import linecache
import signal
import threading
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from cgtool.model.capture import Frame
from cgtool.observe.frames import (
    SUSPENDED,
    callers,
    frames_of_other_threads,
    is_internal,
    line_of,
    locals_of,
)
from cgtool.observe.host_values import (
    CONTAINERS,
    ITSELF,
    KEYS,
    ORDER,
    PRESENCE,
    SHARED,
    SIZE,
    Value,
    array_address,
    attributes_of,
    differing,
    has_only_slots,
    has_same_keys,
    numbers_differ,
    numbers_of,
    random_state,
    value_of,
)
from cgtool.observe.lookup import (
    MISSING,
    Closures,
    Identity,
    behind,
    cells_of,
    content_of,
    holder_of_attributes,
    is_immutable,
    resolve,
    undecorated,
    weakly,
)
from cgtool.observe.source import decided_by, is_asserted, names_in, runs_after
from cgtool.observe.tensors import has_memory, on_host
from cgtool.observe.uses import ATTRIBUTES, Step, Use, uses_of
from cgtool.torch_compat.private import MODULE_TABLES

_HELPERS = 4
"""How deep calls of helpers are followed."""


@dataclass(frozen=True)
class NameIn:
    """What a name means in a running function."""

    frame: types.FrameType
    name: str

    def __call__(self) -> Any:
        return locals_of(self.frame).get(self.name, self.frame.f_globals.get(self.name, MISSING))


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

    def value(self) -> Value | None:
        """Its current value, for a comparison."""
        if self.use.steps[-1:] == (ATTRIBUTES,):
            return attributes_of(self.look_up())
        is_each = any(kind == "each" for kind, _name in self.use.steps)
        return (numbers_of if is_each else value_of)(self.look_up())

    def arrays(self) -> Iterator[int]:
        """The addresses of NumPy arrays among the value and what it is reached through."""
        value = self.root()
        for step in (None, *self.use.steps):
            value = value if step is None else resolve(value, (step,))
            if (address := array_address(value)) is not None:
                yield address


@dataclass(frozen=True)
class Change:
    """A value that differs between two snapshots."""

    watched: Watched
    before: Value
    after: Value

    @property
    def text(self) -> str:
        name, before, after = self.watched.use.text, self.before.shown, self.after.shown
        if before != after:
            return f"{name}: {before}, then {after}"
        if self.after.kind == "random":
            return f"{name}: the state of its generator has changed"
        # Containers of one size look the same.
        return f"{name} has changed"

    def spares(self, key: str) -> bool:
        """Whether it is the change of a container whose items of this key, or size, are as they
        were. A generator of random numbers has no size: it is always true."""
        if key == SIZE and self.after.kind == "random":
            return True
        before, after = self.before.content, self.after.content
        if key == ORDER:
            return self.after.order is not None and self.before.order == self.after.order
        if key == ITSELF:
            return (before is None) == (after is None)
        if key == PRESENCE and self.after.kind == "number":
            return (before is None) == (after is None)
        if key in (KEYS, PRESENCE):
            return has_same_keys(before, after)
        names = differing(before, after)
        return key not in names and (key == SIZE or None not in names)


Snapshot = dict[int, Value]
"""By index into ``HostReads.watched``."""
_Name = tuple[int, str, tuple[Step, ...]]
"""A name in a function: id of its code, root and steps."""


class HostReads:
    """The values that the added frames read.

    ``keeps``: whether what closures of the code hold is kept alive: what a program drops must not
    be.
    """

    def __init__(self, keeps: bool = True) -> None:
        self._keeps = keeps
        self.watched: list[Watched] = []
        self._first: Snapshot = {}
        """Values that are written here, alone or with the object that they are fields of, as they
        were when the function was added."""
        self._absent: set[int] = set()
        """By index: places that are written here, where there was nothing, or None, when the
        function was added."""
        self._named: dict[_Name, list[Watched]] = {}
        self._closures = Closures()
        self._known: set[tuple[int, Identity]] = set()
        """The id of a code object or a use, which is kept, and what it ran with."""
        self._kept: list[Any] = []
        """Keeps roots without weak references (dicts, lists) and code objects alive."""

    def add_frame(self, frame: types.FrameType) -> None:
        """Add the names that a function of the user uses."""
        code = frame.f_code
        first = code.co_varnames[0] if code.co_argcount else None
        if self._is_new(code, frame.f_locals.get(first) if first else None):
            self._add_code(code, frame.f_globals, dict(frame.f_locals), _HELPERS)

    def add_locals(self, frame: types.FrameType) -> None:
        """Add the attributes of objects that the local names of a function hold at its end."""
        code = frame.f_code
        uses = [use for use in uses_of(code, "local") if use.steps]
        values = frame.f_locals if uses else {}
        for use in uses:
            value = values.get(use.root)
            is_object = value is not None and not isinstance(value, torch.Tensor)
            if not is_object or not self._is_new(use, value):
                continue
            root = weakly(value)
            if root is None and has_only_slots(value):
                root = self._reference(value)
            if root is not None:
                self._add(code, use, root, id(value), has_run=True)

    def add_block(self, frame: types.FrameType, uses: list[Use]) -> None:
        """Add the names that a part of a running function uses, its locals included."""
        for use in uses:
            look_up = NameIn(frame, use.root)
            value = look_up()
            # Tensors are the static inputs.
            if value is not MISSING and not isinstance(value, torch.Tensor):
                is_global = use.scope == "global" or frame.f_locals is frame.f_globals
                owner = id(frame.f_globals) if is_global else id(frame)
                self._add(frame.f_code, use, look_up, owner)

    def _is_new(self, subject: types.CodeType | Use, owner: Any) -> bool:
        """Whether a code object, or a use, runs with this object for the first time."""
        known = id(subject), Identity(owner)
        if known in self._known:
            return False
        self._known.add(known)
        self._kept.append(subject)
        return True

    def named(self, code: types.CodeType, root: str, steps: tuple[Step, ...]) -> list[Watched]:
        """A name in a function, for all objects and closures that it ran with."""
        return self._named.get((id(code), root, steps), [])

    def values_of(self, code: types.CodeType, root: str, steps: tuple[Step, ...]) -> list[Any]:
        """What a name in a function holds now."""
        return [watched.look_up() for watched in self.named(code, root, steps)]

    def arrays_on(self, tensors: list[Any]) -> list[Any]:
        """The keys of NumPy arrays, and of items of them, that are memory of these tensors."""
        memory = [
            (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
            for tensor in tensors
            if isinstance(tensor, torch.Tensor) and on_host(tensor) and has_memory(tensor)
        ]
        return [
            watched.key
            for watched in (self.watched if memory else ())
            if watched.key is not None
            and any(
                first <= address < last for address in watched.arrays() for first, last in memory
            )
        ]

    def _add(
        self,
        code: types.CodeType,
        use: Use,
        root: Callable[[], Any],
        owner: int,
        *,
        has_run: bool = False,
    ) -> None:
        """``has_run``: the function has written by now."""
        kept = self._kept_as(root()) if use.scope == "argument" else None
        keys: list[Any] = [(owner, use.root)]
        if kept is not None:
            root, keys = kept.look_up, [*kept.prefixes, kept.key]
        base, is_each, is_field = root(), False, False
        for kind, part in use.steps:
            base = behind(base)
            if kind == "attribute":
                base = _holder(base, part)
            is_setting = (
                issubclass(type(base), torch.nn.Module)
                and kind == "attribute"
                and _is_setting(type(base), part)
            )
            if is_each:
                keys.append((*keys[-1], part))
            elif base is None or base is MISSING:
                keys.append(None)
            elif kind == "each":
                is_each = True
                keys.append((kind, id(base)))
            elif is_field := is_immutable(base) and keys[-1] is not None:
                # It is replaced as a whole: its place is where it is kept.
                keys.append((*keys[-1], part))
            else:
                owner_of_part = holder_of_attributes(base) if kind == "attribute" else base
                keys.append(("module" if is_setting else kind, id(owner_of_part), part))
            base = resolve(base, ((kind, part),))
        frame = Frame(code.co_filename, use.line, code.co_qualname)
        watched = Watched(use, frame, root, owner, keys[-1], tuple(keys[:-1]))
        # What methods in C move on is not seen when they are called.
        found = watched.look_up()
        moves = isinstance(found, (Iterator, *SUSPENDED)) or random_state(found) is not None
        # Nor is what changes a tensor in place.
        moves |= isinstance(found, torch.Tensor) and on_host(found)
        is_first = (use.written and not has_run) or is_field or moves
        value = watched.value() if is_first else None
        if value is not None:
            self._first[len(self.watched)] = value
        if use.written and not use.removes and (found is None or found is MISSING):
            self._absent.add(len(self.watched))
        self.watched.append(watched)
        self._named.setdefault((id(code), use.root, use.steps), []).append(watched)

    def _kept_as(self, value: Any) -> Watched | None:
        """The place where an object is kept that is replaced as a whole: its fields are there."""
        if not is_immutable(value) or type(value) is tuple:
            return None
        kept = (each for each in self.watched if each.key is not None and each.look_up() is value)
        return next(kept, None)

    def _add_code(
        self, code: types.CodeType, names: dict[str, Any], values: dict[str, Any], depth: int
    ) -> None:
        cells: list[tuple[types.FunctionType, dict[str, types.CellType]]] | None = None
        if not self._keeps and _passes_on(code):
            cells = self._cells_of(code, values)
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
                    cells = self._cells_of(code, values)
                shared = {
                    id(cell): cell
                    for _, found in cells
                    if (cell := found.get(use.root)) is not None
                }
                roots += [(self._content(use.root, cell), id(cell)) for cell in shared.values()]
            for root, owner in roots:
                if use.called and depth:
                    self._follow(resolve(root(), use.steps), depth - 1)
                self._add(code, use, root, owner)

    def _follow(self, function: Any, depth: int) -> None:
        """Add what a helper of the user reads, which may run no op."""
        helper = undecorated(function)
        if helper is None or is_internal(code := helper.__code__):
            return
        if "-packages/" in code.co_filename:
            return
        values: dict[str, Any] = {}
        if isinstance(function, types.MethodType):
            values = dict.fromkeys(code.co_varnames[:1], function.__self__)
        if self._is_new(code, next(iter(values.values()), None)):
            self._add_code(code, helper.__globals__, values, depth)

    def _cells_of(
        self, code: types.CodeType, values: dict[str, Any]
    ) -> list[tuple[types.FunctionType, dict[str, types.CellType]]]:
        cells = list(cells_of(code, values))
        for function, _ in cells:
            self._closures.add(function)
        return cells

    def _content(self, name: str, cell: types.CellType) -> Callable[[], Any]:
        return content_of(cell) if self._keeps else self._closures.content(cell, name)

    def _reference(self, value: Any) -> Callable[[], Any]:
        weak = weakly(value)
        if weak is not None:
            return weak
        self._kept.append(value)
        return lambda: value

    def snapshot(self) -> Snapshot:
        """The value of every name now."""
        values = ((index, watched.value()) for index, watched in enumerate(self.watched))
        return {index: value for index, value in values if value is not None}

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

    def changing(self) -> Iterator[Change]:
        """The values that change in every call, after a single one: iterators, generators of random
        numbers, and the numbers that it has counted on (``self.n += 1``). Others may have been set
        once and for all."""
        now = self.snapshot()
        moved = {
            index: replace(value, content=object())
            for index, value in now.items()
            if value.kind == "iterator" and not value.goes_on_as(self._first.get(index))
        }
        yield from self.changes(now, moved)
        yield from self.counted()
        yield from (
            change for change in self.changes(self._first, now) if change.after.kind == "random"
        )

    def counted(self) -> Iterator[Change]:
        """The numbers, and lists of numbers, that one call has counted on (``self.n += 1``)."""
        read = {(each.key, each.frame) for each in self.watched if not each.use.written}
        written = {(each.key, each.frame) for each in self.watched if each.use.written}
        for change in self.changes(self._first, self.snapshot()):
            key, frame = change.watched.key or (), change.watched.frame
            is_number = change.before.kind == change.after.kind == "number"
            # An object that is replaced as a whole is written where its fields are.
            is_written = any((key[:end], frame) in written for end in range(1, len(key) + 1))
            if is_number and is_written and (key, frame) in read:
                yield change

    def filled(self) -> Iterator[Watched]:
        """The containers that one call has put something into, each once."""
        known: set[Any] = {None}
        for change in self.changes(self._first, self.snapshot()):
            watched, found = change.watched, change.watched.look_up()
            is_filled = watched.use.written and isinstance(found, CONTAINERS) and len(found) > 0
            if is_filled and watched.key not in known:
                known.add(watched.key)
                yield watched

    def moved(self) -> Iterator[Change]:
        """The numbers, texts and members of enums that the code has changed, also the numbers among
        those in a container."""
        for change in self.changes(self._first, self.snapshot()):
            before, after = change.before, change.after
            if before.kind != after.kind or before.content is None:
                continue
            is_text = before.kind == "number" and not isinstance(before.content, tuple)
            if is_text or numbers_differ(before.content, after.content):
                yield change

    def made(self, reaching: Collection[Any]) -> Iterator[Watched]:
        """Places where the code has put something because there was nothing, each once: a
        condition, or an ``except``, has decided that, or what an op gets depends on what was there.
        ``reaching``: the keys of what ops get."""
        changed = {change.watched.key for change in self.changes(self._first, self.snapshot())}
        # What the code itself empties first is made anew in every call.
        known = {None, *(each.key for each in self.watched if each.use.resets)}
        for index in sorted(self._absent):
            watched = self.watched[index]
            found = watched.look_up()
            if watched.key in known or found is None or found is MISSING:
                continue
            asked, before = self._looked_at(watched)
            # A flag may say that this is the first call.
            is_asked = watched.key in asked or not asked.isdisjoint(changed)
            if is_asked or (watched.key in before and watched.key in reaching):
                known.add(watched.key)
                yield watched

    def _looked_at(self, written: Watched) -> tuple[set[Any], set[Any]]:
        """The keys of what decides whether a line that writes runs, and of what its function has
        read by then."""
        place = written.frame
        reads = [
            read
            for read in self.watched
            if not read.use.written
            and (read.frame.file, read.frame.function) == (place.file, place.function)
        ]
        deciding = decided_by(place.file, place.line)
        asked = {read.key for read in reads for lines in deciding if read.frame.line in lines}
        # `hasattr(self, "mean")` and `"mean" in self.state` ask the owner.
        name = str(written.use.steps[-1][1]) if written.use.steps else ""
        lines = [linecache.getline(place.file, line) for lines in deciding for line in lines]
        is_named = any(f"{quote}{name}{quote}" in line for line in lines for quote in "\"'")
        if is_named and not asked.isdisjoint(written.prefixes):
            asked.add(written.key)
        before = {
            read.key
            for read in reads
            if read.frame.line <= place.line
            and not read.use.tested
            and not is_asserted(place.file, read.frame.line)
            and not self._is_set_before(read)
            and (read.frame.line == place.line or not decided_by(place.file, read.frame.line))
        }
        return asked - {None}, before

    def _is_set_before(self, read: Watched) -> bool:
        """Whether a line above the read has set what it reads, whenever the read runs."""
        file, line = read.frame.file, read.frame.line
        return any(
            each.use.written
            and each.key == read.key
            and (each.frame.file, each.frame.function) == (file, read.frame.function)
            and each.frame.line < line
            and all(lines in decided_by(file, line) for lines in decided_by(file, each.frame.line))
            for each in self.watched
        )

    def reordered(self) -> Iterator[tuple[Watched, frozenset[int]]]:
        """Lists of tensors that the code has changed, with the addresses of those that have left
        their place in it."""
        for index, before in self._first.items():
            watched = self.watched[index]
            after = watched.value()
            is_list = isinstance(watched.look_up(), list | deque)
            if not is_list or after is None or before.kind != after.kind:
                continue
            places = {address: place for place, address in enumerate(after.addresses)}
            moved = {
                address
                for place, address in enumerate(before.addresses)
                if places.get(address) != place
            }
            if moved:
                yield watched, frozenset(moved)

    def written_by_others(self, serving: Collection[int]) -> set[Any]:
        """The keys of values that the running functions of other threads still write, without those
        that serve the code, by id; and those that handlers of signals write."""
        others, running_at, _ = _reads_of_others(serving)
        return {
            watched.key
            for watched in others.watched
            if watched.use.written
            and not isinstance(watched.look_up(), SHARED)
            and any(
                site is None or runs_after(watched.use.line, *site)
                for site in running_at.get((watched.frame.file, watched.frame.function), [None])
            )
        }


def used_by_others() -> set[int]:
    """The ids of queues and events that the running functions of other threads, and handlers of
    signals, use."""
    others, _, methods = _reads_of_others(())
    values = [watched.look_up() for watched in others.watched]
    values += [getattr(method, "__self__", None) for method in methods]
    return {id(value) for value in values if isinstance(value, SHARED)}


_RunningAt = dict[tuple[str, str], list[tuple[types.CodeType, int]]]
"""Code that runs and its line, by file and function."""


def _reads_of_others(serving: Collection[int]) -> tuple[HostReads, _RunningAt, list[Any]]:
    """What handlers of signals use, and the running functions of other threads, without those that
    serve the code; and what is still to be called: the handlers, and the functions of `Timer`."""
    others, running_at = HostReads(), _RunningAt()
    called = [signal.getsignal(number) for number in signal.valid_signals()]
    for frame in frames_of_other_threads().values():
        for running in callers(frame):
            if id(running.f_code) in serving:
                continue
            if not is_internal(running.f_code):
                others.add_frame(running)
                code = running.f_code
                site = code, line_of((code, running.f_lasti))
                running_at.setdefault((code.co_filename, code.co_qualname), []).append(site)
            elif running.f_code.co_filename == threading.__file__:
                thread = running.f_locals.get("self")
                called.append(getattr(thread, "function", None))
    for function in called:
        others._follow(function, _HELPERS)
    return others, running_at, called


def _passes_on(code: types.CodeType) -> bool:
    """Whether a function shares variables of the functions around it with those in it."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return any(not {*code.co_freevars}.isdisjoint(part.co_freevars) for part in inner)


def _holder(owner: Any, name: str | int) -> Any:
    """The object that has an attribute: the owner, or what its ``__getattr__`` hands the name on
    to, if that is an attribute of the owner."""
    own = getattr(owner, "__dict__", {})
    has_hook = hasattr(type(owner), "__getattr__")
    if not has_hook or name in own or any(name in vars(kind) for kind in type(owner).__mro__):
        return owner
    held = list(own.values())
    if isinstance(owner, torch.nn.Module):
        # Not the methods of the user, which may run ops. A module has no tables before its
        # `__init__` has called PyTorch's.
        tables = [own.get(table, {}) for table in MODULE_TABLES]
        if any(name in table for table in tables):
            return owner
        held += tables[-1].values()
    return next((each for each in held if name in getattr(each, "__dict__", ())), owner)


def _is_setting(module: type, name: str | int) -> bool:
    """Whether methods of PyTorch use an attribute of a module: ``p`` of a ``Dropout``."""
    methods = (
        inspect.unwrap(method)
        for base in module.__mro__[: module.__mro__.index(torch.nn.Module)]
        for method in vars(base).values()
        if isinstance(method, types.FunctionType)
    )
    return any(name in names_in(each.__code__) and is_internal(each.__code__) for each in methods)


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
