"""Which names lead to a tensor now, and which lines bind them to something else.

The same tensor may be bound to a name again and again: a result of a graph always has the same
memory. Whether a name got it before or after a replay is seen only where its lines run.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

import torch

from cgtool.model.capture import Frame
from cgtool.observe.expressions import Variable, assigned_at
from cgtool.observe.frames import locals_of
from cgtool.observe.script.names import Stack, names_of, parts_of
from cgtool.observe.source import codes_in, names_in, part_of_what
from cgtool.observe.suspended import variables_in
from cgtool.observe.uses import CHANGES

_Stored = tuple[str, str | int | None]
"""What an instruction binds: ``("local", "y")``, ``("cell", "y")``, ``("global", "y")``,
``("attribute", "best")``, ``("item", "best")``; ``("item", None)`` for any item."""
_SETS = {
    **dict.fromkeys((*CHANGES, "__setitem__"), "item"),
    **dict.fromkeys(("__setattr__", "setattr", "__dict__", "vars"), "attribute"),
}
"""What a line may bind that has such a name, in any object. A method of the program's with the name
has lines of its own."""
_INSIDE = ("attribute", "item")
_FEW = 2
"""Items of a list whose places are looked at."""
_DEPTH = 1
"""Parts between a name and an object whose parts are looked at."""
Held = TypeVar("Held")
"""What is known of a watched place."""


Part = tuple[str, str | int, int]
"""Kind, key and owner of a ``Place`` in an object."""


@dataclass(frozen=True)
class Place:
    """A name, or an attribute or item of what a name leads to."""

    kind: str
    """``local``, ``global``, ``attribute``, ``item``."""
    key: str | int
    """Of an item; else the name."""
    owner: int
    """Identity of the frame, of the table of globals, or of the object. A variable that several
    functions share is that of the outermost."""
    text: str = field(compare=False)
    """As written in Python: ``self.best``."""
    root: tuple[str, str, int] = field(compare=False)
    """Kind, name and owner of the name that leads to it."""
    code: CodeType = field(compare=False)
    """A function that has that name."""
    through: tuple[Part, ...] = field(default=(), compare=False)
    """The attributes and items between that name and this: of ``self.pair.left``, ``pair``."""

    @classmethod
    def local(cls, frame: FrameType, name: str) -> Place:
        home = home_of(frame, name)
        root = "local", name, id(home)
        return cls(*root, name, root, home.f_code)

    @classmethod
    def shared(cls, frame: FrameType, name: str) -> Place:
        root = "global", name, id(frame.f_globals)
        return cls(*root, name, root, frame.f_code)

    @classmethod
    def of(cls, frame: FrameType, variable: Variable, *, is_global: bool) -> Place:
        """What a variable of a frame leads to."""
        name, attribute = variable
        place = cls.shared(frame, name) if is_global else cls.local(frame, name)
        if not attribute:
            return place
        table = frame.f_globals if is_global else locals_of(frame)
        return place.part("attribute", attribute, table.get(name))

    def part(self, kind: str, key: str | int, value: Any) -> Place:
        """A part of ``value``, which is here."""
        text = f"{self.text}.{key}" if kind == "attribute" else f"{self.text}[{key!r}]"
        return Place(kind, key, id(value), text, self.root, self.code, self.parts)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The attributes and items that lead here from the name; () for a name."""
        own = (self.kind, self.key, self.owner)
        return (*self.through, own) if self.kind in _INSIDE else ()

    def value(self, frame: FrameType) -> Any:
        """What a variable of a frame, or an attribute of it, is now."""
        kind, name, _ = self.root
        value = (frame.f_globals if kind == "global" else locals_of(frame)).get(name)
        for inside, key, _ in self.parts:
            value = dict(parts_of(value)).get((inside, key))
        return value

    def is_on_the_way_to(self, other: Place) -> bool:
        return (self.kind, self.key, self.owner) in other.through

    @property
    def keys(self) -> set[str | int]:
        """The names and keys that lead here."""
        return {self.root[1], *(key for _, key, _ in self.parts)}

    @property
    def in_every_call(self) -> tuple[Any, ...]:
        """What is the same place in another call of the function."""
        return self.kind, self.key, self.code if self.kind == "local" else self.owner


def home_of(frame: FrameType, name: str) -> FrameType:
    """The running frame whose variable a name of a frame is: of an outer function if it is a free
    variable of that of the frame."""
    code = frame.f_code
    outer = frame.f_back if name in code.co_freevars else None
    while outer is not None:
        has_name = name in outer.f_code.co_cellvars
        if has_name and code.co_qualname.startswith(f"{outer.f_code.co_qualname}.<locals>."):
            return outer
        outer = outer.f_back
    return frame


def places_of_tensors(stack: Stack) -> Iterator[tuple[Place, Any]]:
    """What the running code can name that is a tensor or a tuple of some, and where it is."""
    seen: set[Place] = set()
    # Objects by the name that lives longest.
    for frame in reversed(stack.values()):
        for name, value, is_global in names_of(frame):
            place = Place.shared(frame, name) if is_global else Place.local(frame, name)
            if place in seen:
                continue
            seen.add(place)
            if tensors_at(value):
                yield place, value
            elif not _is_long(value):
                yield from _inside(place, value)


def _inside(place: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    for (kind, key), part in parts_of(value):
        if tensors_at(part):
            yield place.part(kind, key, value), part
        elif len(place.parts) < _DEPTH and not _is_long(part):
            yield from _inside(place.part(kind, key, value), part)


def _is_long(value: Any) -> bool:
    """What keeps the results of many replays is followed as a whole (``outputs``)."""
    return isinstance(value, tuple) or (isinstance(value, list) and len(value) > _FEW)


def tensors_at(value: Any) -> list[torch.Tensor]:
    """The tensor, or those in the tuple, at a place."""
    parts = value if isinstance(value, tuple) else (value,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


@cache
def _stores(code: CodeType) -> dict[int, frozenset[_Stored]]:
    """What the lines of a function bind."""
    stored: dict[int, set[_Stored]] = {}
    line, last_constant = code.co_firstlineno, None
    is_global = not code.co_flags & 1
    for each in dis.get_instructions(code):
        if each.positions is not None and each.positions.lineno is not None:
            line = each.positions.lineno
        name, argument = each.opname, each.argval
        found: list[_Stored] = []
        if name.startswith(("STORE_FAST", "DELETE_FAST")):
            found = [("local", part) for does, part in variables_in(each) if does != "LOAD"]
        elif name in ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL"):
            found = [("global" if is_global or "GLOBAL" in name else "local", argument)]
        elif name in ("STORE_DEREF", "DELETE_DEREF"):
            found = [("cell", argument)]
        elif name in ("STORE_ATTR", "DELETE_ATTR"):
            found = [("attribute", argument)]
        elif name in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            found = [("item", last_constant)]
        elif name.startswith("LOAD_"):
            found = [(_SETS[part], None) for part in _names(argument) if part in _SETS]
        if found:
            stored.setdefault(line, set()).update(found)
        is_key = name.startswith("LOAD_") and isinstance(argument, str | int)
        last_constant = argument if is_key and "CONST" in name else None
    return {line: frozenset(each) for line, each in stored.items()}


def _names(argument: Any) -> tuple[str, ...]:
    """Python 3.13 stores two names at once."""
    parts = argument if isinstance(argument, tuple) else (argument,)
    return tuple(part for part in parts if isinstance(part, str))


@cache
def _mentions(code: CodeType) -> frozenset[str | int]:
    """Names, attributes and constant keys in a function."""
    names = (*names_in(code), *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    keys = (each for each in code.co_consts if isinstance(each, str | int))
    return frozenset((*names, *keys))


@cache
def _loads(code: CodeType) -> dict[int, frozenset[str]]:
    """What the lines of a function read: variables, and attributes as ``.name``."""
    found: dict[int, set[str]] = {}
    for each in itertools.chain.from_iterable(map(dis.get_instructions, codes_in(code))):
        line = each.positions.lineno if each.positions is not None else None
        if line is None or "LOAD_" not in each.opname or "CONST" in each.opname:
            continue
        read = [name for does, name in variables_in(each) if does == "LOAD"] or _names(each.argval)
        is_attribute = each.opname.startswith(_OF_ATTRIBUTES)
        found.setdefault(line, set()).update(f".{name}" if is_attribute else name for name in read)
    return {line: frozenset(each) for line, each in found.items()}


_OF_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")


def read_at(code: CodeType, line: int) -> frozenset[str]:
    """The variables that a line of a function reads, and attributes, as ``.name``."""
    return _loads(code).get(line, frozenset())


def names_at(code: CodeType, line: int) -> frozenset[str]:
    """The variables and attributes that a line of a function reads."""
    return frozenset(name.removeprefix(".") for name in read_at(code, line))


def lines_that_read(code: CodeType, name: str) -> list[int]:
    """The lines of a function that read a variable, or an attribute, ``.name``."""
    return [line for line, read in _loads(code).items() if name in read]


def lines_that_lead_to(place: Place, code: CodeType) -> list[int]:
    """The lines of a function that bind a place, or what leads to it."""
    own = lines_that_bind(place, code) if code is place.code else []
    parts = {(kind, key) for kind, key, _ in place.parts}
    return own + [line for line, stored in _stores(code).items() if not parts.isdisjoint(stored)]


def lines_that_bind(place: Place, code: CodeType) -> list[int]:
    """The lines of a function that bind a name, or the name that leads to a place."""
    kind, name, _ = place.root
    wanted = {(kind, name)} | ({("cell", name)} if kind == "local" else set())
    return [line for line, stored in _stores(code).items() if stored & wanted]


_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_WHERE = 3
"""The bits of the argument of ``RESUME`` that are 0 at the start of a function."""


def _instruction(frame: FrameType) -> tuple[str, int]:
    """The instruction that a frame has come to, and its argument."""
    code = frame.f_code.co_code
    return dis.opname[code[frame.f_lasti]], code[frame.f_lasti + 1]


class Bindings(Generic[Held]):
    """Calls ``on_bound`` when a line has bound a watched place, with whether that may be what it
    held before (``best = max(best, new)``), ``on_handed_over`` when another place may have got what
    is known of one (``before = best``), with what is there, and ``on_return`` when a function that
    mentions one is about to return. Follows the lines of a ``LineTrace``.

    Errs on one side: what may have been bound counts as bound.
    """

    def __init__(
        self,
        on_bound: Callable[[Place, bool], None],
        on_handed_over: Callable[[Place, Held, Any], None],
        on_return: Callable[[FrameType, Any], None],
    ) -> None:
        self.lock = threading.RLock()
        """Of what is known of places, which several threads may bind and read."""
        self._on_bound = on_bound
        self._on_handed_over = on_handed_over
        self._on_return = on_return
        self._watched: Mapping[Place, Held] = {}
        self._keys: frozenset[str | int] = frozenset()
        self._mentioned: dict[int, tuple[CodeType, bool]] = {}
        """By identity of a function: whether one of these keys is in it."""
        self._pending: dict[int, tuple[frozenset[_Stored], int]] = {}
        """By identity of a frame: what its line, which may not be over, binds."""
        self._raised_at: tuple[int, int] | None = None
        """The frame, by identity, and its instruction, where an exception was the last event."""
        self._last: dict[int, dict[tuple[str, str | int], Frame]] = {}
        """The last line that has bound a place, by owner, which is 0 for those inside an object;
        kind and key."""

    def watch(self, places: Mapping[Place, Held], stack: Stack) -> None:
        """Follow these places, and no others."""
        self._watched = places
        self._follow(frozenset(key for place in places for key in place.keys))
        for number, frame in stack.items():
            stored = _stores(frame.f_code).get(frame.f_lineno)
            if stored:
                self._pending.setdefault(number, (stored, frame.f_lineno))

    def _follow(self, keys: frozenset[str | int]) -> None:
        if keys != self._keys:
            self._keys = keys
            self._mentioned.clear()

    def bound_at(self, place: Place) -> Frame | None:
        """The last line that was seen to bind a place."""
        owner = 0 if place.kind in _INSIDE else place.owner
        return self._last.get(owner, {}).get((place.kind, place.key))

    def takes_from(self, place: Place, variable: Place, frame: FrameType) -> bool:
        """Whether a variable of a frame was last bound to a part of what is at a place."""
        at = self.bound_at(variable)
        _, root, root_owner = place.root
        return (
            at is not None
            and variable.key != root
            and root_owner in (id(home_of(frame, root)), id(frame.f_globals))
            and part_of_what(at.file, at.line) == root
            and (place.kind not in _INSIDE or place.key in names_at(frame.f_code, at.line))
        )

    def follows(self, code: CodeType) -> bool:
        known = self._mentioned.get(id(code))
        if known is None:
            is_mentioned = not self._keys.isdisjoint(_mentions(code))
            known = self._mentioned[id(code)] = code, is_mentioned
        return known[1]

    def on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        with self.lock:
            self._on_event(frame, event, argument)

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        number = id(frame)
        if self._is_suspension(frame, event):
            # Its line is not over.
            if event == "return":
                self._on_return(frame, argument)
            return
        pending = self._pending.pop(number, None)
        if event == "call":
            self._forget(number)
        elif pending is not None:
            self._bound(frame, *pending)
        if event == "line":
            stored = _stores(frame.f_code).get(frame.f_lineno)
            if stored:
                self._pending[number] = stored, frame.f_lineno
        elif event == "return":
            self._on_return(frame, argument)
            self._forget(number)

    def _is_suspension(self, frame: FrameType, event: str) -> bool:
        """Whether a frame returns to its caller for a while, or goes on: a generator, or what is
        awaited."""
        at = id(frame), frame.f_lasti
        ends, self._raised_at = self._raised_at == at, at if event == "exception" else None
        if not frame.f_code.co_flags & _SUSPENDABLE:
            return False
        name, argument = _instruction(frame)
        is_resumed = name == "RESUME" and argument & _WHERE != 0
        if event == "call":
            return is_resumed or name != "RESUME"
        # From Python 3.13 on, a frame that waits has come to the `RESUME`. An exception may be
        # thrown in there, and end it.
        return event == "return" and (is_resumed or name == "YIELD_VALUE") and not ends

    def _forget(self, number: int) -> None:
        """The names of a call are gone."""
        self._last.pop(number, None)
        for place in list(self._watched):
            if place.root[2] == number:
                self._on_bound(place, False)

    def _bound(self, frame: FrameType, stored: frozenset[_Stored], line: int) -> None:
        code = frame.f_code
        at = Frame(code.co_filename, line, code.co_qualname)
        assigned = self._assigned(frame, stored, line)
        handed_over = [
            (target, self._watched[source])
            for target, (_, sources) in assigned.items()
            for source in sources
            if source in self._watched
        ]
        for place in list(self._watched):
            kind, name, owner = place.root
            is_root = (("cell", name) in stored and owner == id(home_of(frame, name))) or (
                (kind, name) in stored and owner in (id(frame), id(frame.f_globals))
            )
            # Of which object is known of an assignment.
            is_part = any(
                (kind, None) in stored or ((kind, key) in stored and not assigned)
                for kind, key, _ in place.parts
            )
            leads = [each for each in assigned if each == place or each.is_on_the_way_to(place)]
            if leads:
                self._on_bound(place, place.key in assigned[leads[0]][0])
            elif is_root or is_part:
                self._on_bound(place, place.key in names_at(code, line))
        for kind, key in stored:
            if kind in _INSIDE and key is not None:
                self._last.setdefault(0, {})[kind, key] = at
            elif key is not None:
                owner = id(frame.f_globals if kind == "global" else home_of(frame, str(key)))
                stored_at = "local" if kind == "cell" else kind, key
                self._last.setdefault(owner, {})[stored_at] = at
        for place, held in handed_over:
            self._follow(self._keys | place.keys)
            self._on_handed_over(place, held, place.value(frame))

    def _assigned(
        self, frame: FrameType, stored: frozenset[_Stored], line: int
    ) -> dict[Place, tuple[frozenset[str], list[Place]]]:
        """The places that an assignment binds, the names that it reads for them, and the places
        whose values they get as they are; nothing if it is not known."""
        assigned = {}
        code = frame.f_code
        variables = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
        for each in assigned_at(frame.f_code.co_filename, line) if self._watched else ():
            name, attribute = each.target
            # What has the attribute is read, not stored.
            is_local = name in variables if attribute else ("global", name) not in stored
            sources = [
                Place.of(frame, each.source, is_global=is_global)
                for is_global in (False, True)
                if each.source is not None
            ]
            target = Place.of(frame, each.target, is_global=not is_local)
            assigned[target] = each.read, sources
        return assigned
