"""What captured code reads by name on the host: numbers, flags, tables, lists, functions, modules.

What follows if a value were another one at a replay is known from where it goes (``frozen_flows``):
in the functions that the capture calls, and in its own lines. A ``forward`` of PyTorch's modules is
not followed: a field of the module counts if an op got its value.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from cgtool.detectors.frozen_values import FrozenValues
from cgtool.detectors.script.frozen import Frozen
from cgtool.findings import code
from cgtool.model.capture import Frame, Frames
from cgtool.model.finding import Code
from cgtool.observe.flow_names import RECEIVERS
from cgtool.observe.frames import (
    frames_of,
    is_internal_file,
    line_of,
    locals_of,
    names_in_expression,
    package_part,
)
from cgtool.observe.host_reads import HostReads, NameIn, Watched
from cgtool.observe.lookup import (
    MISSING,
    Identity,
    attribute_of,
    behind,
    is_immutable,
    resolve,
    weakly,
)
from cgtool.observe.script.changes import Target
from cgtool.observe.script.names import (
    Root,
    Stack,
    another_argument,
    another_self,
    follows,
    name_in,
)
from cgtool.observe.script.state import Op
from cgtool.observe.source import indexed_by, statement_start
from cgtool.observe.tensors import key_of, keys_in, tensors_in
from cgtool.observe.uses import ONE, Step, Use, name_chain
from cgtool.torch_compat.private import children_of, pytree

CONTROL_FLOW_FROZEN = code("control-flow-frozen")
METADATA_ADDRESS_CHANGED = code("metadata-address-changed")
PARAMETER_REBOUND = code("parameter-rebound")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")

_ITEMS = 4096
"""Items of a container that are looked at."""
_SIMPLE = (bool, int, float, complex, str, bytes)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)

_COUNTED = (dict, list, tuple, set, frozenset, collections.deque)
_CONTAINERS = (dict, list, tuple, torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
_FIX_OF_KEY = (
    "capture a graph for each value, or `copy_()` the tensors that it selects into static ones "
    "before each replay"
)
_FIX_OF_COUNT = (
    "capture again when the number of items has changed, or keep it, and `copy_()` into the "
    "tensors that are there (one that has no effect stands for an item that is not in use)"
)
_FIX_OF_NUMBERS = (
    "keep the numbers in a tensor on the device; `copy_()` new ones into it before a replay"
)
_FIX_OF_OPTION = "capture a graph for each value, or again when it has changed"


class State(NamedTuple):
    """A value of the host, reduced to what a comparison needs."""

    kind: str
    """``value``; ``table`` (of numbers or texts); ``items`` (other objects, in order);
    ``function``; ``partial`` (a function and arguments); ``presence`` (whether it is not None);
    ``owner`` (of parameters); ``count`` (how many items, or whether there are any)."""
    content: tuple[Hashable, ...]
    """Values, or identities of objects."""

    def __str__(self) -> str:
        if self.kind == "presence":
            return "an object" if self.content[0] else "None"
        if self.kind not in ("value", "table", "count"):
            return f"{len(self.content)} items" if self.kind == "items" else f"a {self.kind}"
        shown = repr(list(self.content) if self.kind == "table" else self.content[0])
        return shown if len(shown) < 60 else shown[:57] + "..."


def state_of(value: Any) -> State | None:
    """None for what is compared elsewhere (tensors, modules) or cannot be."""
    if value is None or type(value) in _SIMPLE or isinstance(value, enum.Enum):
        return State("value", (value,))
    if isinstance(value, _FUNCTIONS):
        return State("function", (Identity(_unwrapped(value)),))
    if isinstance(value, functools.partial):
        parts = (value.func, *value.args, *itertools.chain(*value.keywords.items()))
        simple = (part if type(part) in _SIMPLE else Identity(part) for part in parts)
        return State("partial", tuple(simple))
    if isinstance(value, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict):
        return State("items", tuple(map(Identity, children_of(value).values())))
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)[:_ITEMS]
        if any(isinstance(item, torch.Tensor) for item in items):
            return None
        if all(type(item) in (bool, int, float, str) for item in items):
            return State("table", tuple(items))
        return State("items", tuple(map(Identity, items)))
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        small = getattr(value, "size", _ITEMS) < _ITEMS
        return State("table", tuple(value.reshape(-1).tolist()) if small else (value.tobytes(),))
    return None


def _count_of(use: Use, value: Any, before: State | None) -> State | None:
    """How many items a container has, if that is asked of it. The items of one that has no tensors
    are compared one by one. ``before``: the count at the capture."""
    if not isinstance(behind(value), _COUNTED):
        return None
    items = _items_of(value)
    if before is None and items and not any(isinstance(item, torch.Tensor) for item in items):
        return None
    return State("count", (bool(items) if use.counted == "empty" else len(items),))


def _is_value(value: Any) -> bool:
    """Whether an object stands for a value, and is replaced as a whole."""
    return isinstance(value, enum.Enum) or is_immutable(value)


def _unwrapped(function: Any) -> Any:
    """The function without what ``torch.optim`` puts around it: a scheduler wraps the ``step`` of
    its optimizer."""
    while True:
        function = getattr(function, "__func__", function)
        wrapped = getattr(function, "__wrapped__", None)
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        if wrapped is None or not package_part(file).startswith("/torch/optim/"):
            return function
        function = wrapped


@dataclass
class Reads:
    """What the code of one capture reads, while it is captured."""

    fields: HostReads = field(default_factory=HostReads)
    """What each ``forward`` of PyTorch's modules reads."""
    numbers: dict[tuple[str, str], set[tuple[type, Any]]] = field(default_factory=dict)
    """Numbers passed to ops, by the file and function of the ``forward`` around them."""
    forwards: dict[tuple[str, str], Frames] = field(default_factory=dict)
    """The user's line that called a ``forward``, by its file and function."""
    chains: dict[tuple[str, int], Frames] = field(default_factory=dict)
    """The frames of an op, by the file and line that called it."""
    lists: set[tuple[str, int, tuple[Hashable, ...]]] = field(default_factory=set)
    """The lists of tensors that ops got, by the keys of their storages: file and line of the call,
    and the keys."""
    flows: HostReads = field(default_factory=HostReads)
    """What the functions that ran and the lines of the capture read."""
    reaching: dict[Any, Code] = field(default_factory=dict)
    """What a change of a state would mean, by its key, for all that reach an op."""

    def follow(self, values: FrozenValues) -> None:
        """The capture has ended: where do its values go?"""
        self.flows, self.reaching = values.reads, values.reaching()

    def note(self, op: Op, frame: types.FrameType | None, outer: dict[int, int]) -> None:
        """An op was captured; ``frame`` called it."""
        chain = () if op.call is None else op.call.chain
        for site in chain[:1]:
            file, line = site[0].co_filename, line_of(site)
            self.chains.setdefault((file, line), frames_of(chain))
            lists = [each for each in op.args if isinstance(each, list | tuple)]
            if any(isinstance(item, torch.Tensor) for each in lists for item in each):
                line = statement_start(file, line)
                self.lists |= {(file, line, _keys_of_items(each)) for each in lists}
        passed: set[tuple[type, Any]] = set()
        while frame is not None and id(frame) not in outer:
            passed |= _passed_by(frame)
            if _is_forward(frame.f_code):
                self.fields.add_frame(frame)
                locals_of(frame)
                function = frame.f_code.co_filename, frame.f_code.co_qualname
                self.numbers.setdefault(function, set()).update(_numbers_of(op), passed)
                passed = set()
                self.forwards.setdefault(function, frames_of(chain))
            frame = frame.f_back

    def _code_of(self, use: Use, state: State, frame: Frame, key: Hashable) -> Code | None:
        """What it would mean if the value that ``frame`` reads were another one at a replay.
        ``key``: what the flows call it."""
        if use.written or use.text.endswith(".training"):
            return None
        is_data = state.kind in ("value", "table", "presence") and not use.called
        if is_internal_file(frame.file):
            numbers = self.numbers.get((frame.file, frame.function), set())
            is_passed = any((type(value), value) in numbers for value in state.content)
            return PYTHON_SCALAR_FROZEN if is_data and is_passed else None
        if is_data or state.kind == "partial":
            return self.reaching.get(key)
        decides = bool(use.steps) if use.called else use.tested
        is_of_kind = state.kind == ("function" if use.called else "items")
        return CONTROL_FLOW_FROZEN if decides and is_of_kind else None

    def names(self, external: Collection[int], parts: Collection[int]) -> Iterator[Frozen]:
        """What the captured code reads by name. ``external``: the keys of the storages that the
        graph reads from outside; ``parts``: the ids of modules whose layers are compared as
        such."""
        known: set[tuple[Frame, str, int, str]] = set()
        containers = _Containers(self.flows.watched)
        written = {(each.frame, each.use.text) for each in self.flows.watched if each.use.written}
        # What it was before the captured code made it is not known here (`first_calls`).
        made = {each.key for each in self.flows.made(self.reaching)}
        receivers = _Receivers(self.flows.watched)
        for watched in (*self.fields.watched, *self.flows.watched):
            use, root, frame = watched.use, watched.root, watched.frame
            place = frame, use.text, watched.owner, use.counted
            is_in_block = isinstance(root, NameIn)
            if place in known or (use.scope == "local" and not is_in_block) or ONE in use.steps:
                continue
            known.add(place)
            if (is_in_block and place[:2] in written) or watched.key in made:
                continue
            value = resolve(root(), use.steps)
            if use.counted or self._is_passed(watched, value):
                yield from self._counted(watched, value, containers)
            if use.counted:
                continue
            owner = _owner(watched, value, external, parts)
            state = _state_read(use, value) if owner is None else owner.state
            meaning = None if owner is None else owner.meaning
            if owner is None and state is not None:
                meaning = self._code_of(use, state, frame, watched.key)
            if state is None or meaning is None:
                continue
            if owner is None:
                for use_, root_ in receivers.of(watched):
                    yield self._frozen(watched, use_, root_, state, meaning, value)
            if _keeps_alive(watched) and state.kind != "value":
                continue
            if owner is not None:
                look_up, local_to, _ = _looked_up(use, root, watched.owner)
                yield owner.frozen(use, look_up, self._read_at(frame), local_to)
            else:
                yield self._frozen(watched, use, root, state, meaning, value)

    def _is_passed(self, watched: Watched, value: Any) -> bool:
        """Whether a container is passed to an op as a whole."""
        use, file = watched.use, watched.frame.file
        if (
            not isinstance(behind(value), _COUNTED)
            or use.written
            or use.called
            or is_internal_file(file)
        ):
            return False
        place = file, statement_start(file, use.line)
        return (*place, _keys_of_items(_items_of(value))) in self.lists

    def _counted(self, watched: Watched, value: Any, containers: _Containers) -> Iterator[Frozen]:
        """A container of tensors, whose number of items the captured code asks."""
        watched = replace(watched, use=replace(watched.use, counted=watched.use.counted or "loop"))
        state = _state_read(watched.use, value)
        meaning = self.reaching.get(watched.key)
        is_internal = is_internal_file(watched.frame.file)
        is_reported = not is_internal and containers.is_reported(watched, value)
        if state is None or meaning is None or not is_reported:
            return
        why = f"`{watched.use.text}` has another number of items than at the capture"
        if watched.use.counted == "loop":
            meaning = CONTROL_FLOW_FROZEN
            why += (
                ", where the captured code went through all of them; the replay repeats those ops"
            )
        elif watched.use.counted == "empty" or watched.use.tested:
            meaning = CONTROL_FLOW_FROZEN
            why += ", which decides which ops run; the replay repeats the captured ops"
        else:
            why += "; the replay uses the old number"
        before = {Identity(item) for item in _items_of(value)}
        for use, root in containers.places_of(watched):
            frozen = self._frozen(watched, use, root, state, meaning, value)
            name = f"{'bool' if use.counted == 'empty' else 'len'}({use.text})"
            if isinstance(root, NameIn) and not use.steps:
                look_up, *_ = _looked_up(use, root, watched.owner)
                frozen = frozen._replace(read=_of_the_same(before, look_up, frozen.read))
            tensors = frozenset(filter(None, map(key_of, tensors_in(value))))
            yield frozen._replace(reason=why, name=name, tensors=tensors, fix=_FIX_OF_COUNT)

    def _read_at(self, frame: Frame) -> Frames:
        if is_internal_file(frame.file):
            return self.forwards.get((frame.file, frame.function), ())
        return self.chains.get((frame.file, frame.line)) or (frame,)

    def _frozen(
        self,
        watched: Watched,
        use: Use,
        root: Callable[[], Any],
        state: State,
        meaning: Code,
        value: Any,
    ) -> Frozen:
        """``use``, ``root``: those of ``watched``, or of the place that its object is read from."""
        look_up, local_to, subject = _looked_up(use, root, watched.owner)
        if subject is None and watched.key is not None and meaning == CONTROL_FLOW_FROZEN:
            subject = ("branch", watched.key)
        read_at = self._read_at(watched.frame)
        tensors = _tensors_of_items(value) if state.kind == "items" else frozenset()
        named = _named(meaning, use, state, look_up, read_at, local_to, subject)
        fix = self._fix_of(watched, state) if meaning == PYTHON_SCALAR_FROZEN else None
        return named._replace(tensors=tensors, fix=fix)

    def _fix_of(self, read: Watched, state: State) -> str | None:
        """The fix for a value that no op computes with: a key that selects from a container, or
        something other than a number. None for a number, which has the fix of the page."""
        for container in indexed_by(read.frame.file, read.use.line, read.use.text):
            root, steps = name_chain(container) or ("", ())
            if any(
                watched.frame.function == read.frame.function
                and watched.use.root == root
                and isinstance(resolve(watched.root(), steps), _CONTAINERS)
                for watched in self.flows.watched
            ):
                return _FIX_OF_KEY
        is_number = all(isinstance(value, int | float | complex) for value in state.content)
        if is_number and state.kind == "table" and len(state.content) > 1:
            return _FIX_OF_NUMBERS
        return None if is_number else _FIX_OF_OPTION

    def of_another(
        self, frame: types.FrameType | None, external: Collection[int], now_at: Callable[[], Frames]
    ) -> Iterator[Frozen]:
        """The modules that the function around a capture has as its arguments, or reads of its
        ``self``: a call with others has graphs of its own. ``now_at``: the line that replays."""
        if frame is None:
            return
        code, values = frame.f_code, locals_of(frame)
        arguments = code.co_varnames[: code.co_argcount]
        known: set[str] = set()
        for watched in self.flows.watched:
            use = watched.use
            if use.root not in arguments or use.text in known or (use.steps and use.root != "self"):
                continue
            value = values.get(use.root)
            reference = weakly(value) if watched.root() is value else None
            owner = _owner(watched, watched.look_up(), external, (), is_own=True)
            # The model of another optimizer is reported.
            if reference is None or owner is None or owner.kind == "optimizer":
                continue
            known.add(use.text)
            if use.root == "self":
                another, kind = partial(another_self, type(value)), type(value).__name__
            else:
                another, kind = partial(another_argument, code, use.root), use.root
            yield owner.of_another(use, reference, another, kind, now_at)


def _looked_up(use: Use, root: Callable[[], Any], owner: int) -> tuple[Root, int | None, Hashable]:
    """How to look up a root again, the frame whose local variable is meant, and the ``subject`` of
    ``Frozen``. ``owner``: as of ``Watched``."""
    if not isinstance(root, NameIn):
        return follows(root), None, None
    number = id(root.frame)
    # The function may capture a graph for each of its arguments.
    return (
        name_in(root.frame, root.name, has_parts=bool(use.steps)),
        number if owner == number else None,
        ("argument", root.frame.f_code, use.text),
    )


class _Receivers:
    """The places from which captured code reads the objects whose properties and methods run:
    ``self.bits`` of ``self.bits.levels``. Another object there has other fields."""

    def __init__(self, watched: Iterable[Watched]) -> None:
        self._places: dict[tuple[int, str], list[tuple[Watched, int]]] = {}
        """By id of the object and name of the function: a place, and the number of its steps that
        lead to the object."""
        for each in watched:
            value = each.root()
            for index, (kind, name) in enumerate(each.use.steps):
                if kind == "each" or value is None or value is MISSING:
                    break
                if kind == "attribute":
                    place = id(value), str(name)
                    self._places.setdefault(place, []).append((each, index))
                value = resolve(value, ((kind, name),))

    def of(self, watched: Watched, depth: int = 2) -> Iterator[tuple[Use, Callable[[], Any]]]:
        """What a method reads of its object, as read from the places that have the object."""
        use, root = watched.use, watched.root
        value = root()
        is_receiver = use.scope == "argument" and use.root in RECEIVERS
        # A module that is replaced has its own finding.
        if not is_receiver or isinstance(value, torch.nn.Module | type) or value is MISSING:
            return
        name = watched.frame.function.rpartition(".")[2]
        known: set[tuple[int, tuple[Step, ...]]] = set()
        for place, count in self._places.get((id(value), name), ()):
            outer = place.use
            # The lines around a capture may give a name to the next object.
            if count == 0 and not (_is_value(value) and outer.scope != "argument"):
                continue
            if not isinstance(place.root, NameIn | weakref.ref) and outer.scope != "global":
                continue
            steps = outer.steps[:count]
            if (id(place.root()), steps) in known:
                continue
            known.add((id(place.root()), steps))
            yield (
                replace(use, root=outer.root, scope=outer.scope, steps=(*steps, *use.steps)),
                place.root,
            )
            if depth and outer.root in RECEIVERS:
                inner = replace(place, use=replace(outer, steps=(*steps, *use.steps)))
                yield from self.of(inner, depth - 1)


class _Containers:
    """The places from which captured code reads containers: that which a function has as an
    argument has a name where it is called."""

    def __init__(self, watched: Iterable[Watched]) -> None:
        self._changed: set[Any] = set()
        """Keys and ids of those that the captured code changes itself."""
        self._looped_over: set[int] = set()
        """Ids."""
        self._places: dict[int, list[Watched]] = {}
        """By id."""
        for each in watched:
            value = behind(each.look_up())
            if isinstance(value, _COUNTED):
                self._places.setdefault(id(value), []).append(each)
                if each.use.written:
                    self._changed |= {each.key, id(value)}
                if each.use.counted == "loop":
                    self._looped_over.add(id(value))

    def is_reported(self, watched: Watched, value: Any) -> bool:
        """Whether a change of its number of items is reported where it is read: not of one that the
        captured code changes itself; of several reads the loop."""
        number = id(behind(value))
        is_loop = watched.use.counted == "loop" or number not in self._looped_over
        return is_loop and self._changed.isdisjoint((watched.key, number))

    def places_of(self, watched: Watched) -> Iterator[tuple[Use, Callable[[], Any]]]:
        """The place that is read, or, if that keeps the container alive, those that do not."""
        if not _keeps_alive(watched):
            yield watched.use, watched.root
            return
        value = behind(watched.look_up())
        for place in self._places.get(id(value), ()):
            if not _keeps_alive(place) and not place.use.counted:
                yield replace(place.use, counted=watched.use.counted), place.root
                return


def _items_of(container: Any) -> list[Any]:
    container = behind(container)
    return list(container.values() if isinstance(container, dict) else container)[:_ITEMS]


def _of_the_same(
    before: Collection[Identity], root: Root, read: Callable[[Stack], Hashable]
) -> Callable[[Stack], Hashable]:
    """``read``, as long as the name has a container with one of the items that it had: the lines
    around a capture may give the name to the next one."""

    def read_same(stack: Stack) -> Hashable:
        now = root(stack)
        is_same = isinstance(behind(now), _COUNTED) and any(
            Identity(item) in before for item in _items_of(now)
        )
        return read(stack) if is_same or not before else MISSING

    return read_same


def _keys_of_items(items: Iterable[Any]) -> tuple[Hashable, ...]:
    """The keys of the storages of tensors in a list, in order."""
    return tuple(key_of(each) if isinstance(each, torch.Tensor) else None for each in items)


def _keeps_alive(watched: Watched) -> bool:
    """Whether it would keep alive what the script has passed."""
    return watched.use.scope == "argument" and not isinstance(watched.root, NameIn | weakref.ref)


def _state_read(use: Use, value: Any, before: State | None = None) -> State | None:
    """What a name means where it is read: a condition may ask whether there is an object at all.
    ``before``: at the capture."""
    if use.counted:
        return _count_of(use, value, before)
    state = state_of(value)
    if use.tested and not use.called and value is not MISSING and (state is None or value is None):
        return State("presence", (value is not None,))
    return state


def _named(
    meaning: Code,
    use: Use,
    state: State,
    root: Root,
    read_at: Frames,
    local_to: int | None,
    subject: Hashable,
) -> Frozen:
    """A name that captured code has read. ``subject``: as of ``Frozen``."""
    if meaning == CONTROL_FLOW_FROZEN:
        reason = f"`{use.text}` decides which ops run, and has changed since the capture; the "
        reason += "replay repeats the captured ops"
    else:
        reason = f"`{use.text}` has changed since the capture; the replay uses the old value"

    def read(stack: Stack) -> Any:
        now = _state_read(use, resolve(root(stack), use.steps), state)
        return now if now is not None and now.kind == state.kind else MISSING

    bound_by = _bound_by(use, local_to)
    return Frozen(meaning, reason, state, read, read_at, use.text, *bound_by, subject=subject)


def _bound_by(use: Use, local_to: int | None) -> tuple[tuple[Target, ...], int | None]:
    """What a line must assign to have changed a name, and the frame whose local variable it is."""
    path: tuple[Target, ...] = (("name", use.root), *use.steps)
    return path[::-1], None if use.steps else local_to


@dataclass
class _Owner:
    """A module, or an object that has modules, whose parameters or buffers a graph reads, or the
    optimizer that steps in it, under a name that the captured code reads."""

    kind: str
    state: State
    tensors: frozenset[int]
    """The keys of the storages of those that the graph reads."""
    numbers: tuple[dict[str, Any], ...]
    """Of an optimizer."""
    subject: Hashable
    """As of ``Frozen``."""

    @property
    def meaning(self) -> Code:
        if self.kind != "optimizer":
            return PARAMETER_REBOUND
        return METADATA_ADDRESS_CHANGED if self.tensors else PYTHON_SCALAR_FROZEN

    def frozen(self, use: Use, root: Root, read_at: Frames, local_to: int | None) -> Frozen:
        kept, fix = "reads the parameters of the old one", None
        if self.kind == "optimizer":
            kept, fix = "takes the steps of the old one", _KEEP_OPTIMIZER

        def read(stack: Stack) -> Any:
            now = resolve(root(stack), use.steps)
            if not _tensors_of(now) and not isinstance(now, Optimizer):
                return MISSING
            state = State("owner", (Identity(now),))
            return self.state if self._is_same_for_the_graph(now) else state

        return Frozen(
            self.meaning,
            f"`{use.text}` is a different {self.kind} than at the capture; the replay still {kept}",
            self.state,
            read,
            read_at,
            "",
            *_bound_by(use, local_to),
            subject=self.subject,
            tensors=self.tensors,
            fix=fix,
        )

    def _is_same_for_the_graph(self, now: Any) -> bool:
        """What wraps a module has its parameters; another optimizer may be like the old one."""
        numbers = _numbers_of_optimizer(now)
        return (
            self.tensors <= _tensors_of(now)
            and len(numbers) >= len(self.numbers)
            and all(
                own.items() <= other.items()
                for own, other in zip(self.numbers, numbers, strict=False)
            )
        )

    def of_another(
        self,
        use: Use,
        own: Callable[[], Any],
        another: Callable[[Any, Stack], Any],
        kind: str,
        now_at: Callable[[], Frames],
    ) -> Frozen:
        """The same in a call for another object than its ``own``."""

        def read(stack: Stack) -> Any:
            other = another(own(), stack)
            tensors = self.tensors if other is None else _tensors_of(resolve(other, use.steps))
            return self.state if not tensors or self.tensors <= tensors else "another"

        different = f", whose `{use.text}` is a different {self.kind}" if use.steps else ""
        return Frozen(
            PARAMETER_REBOUND,
            f"the graph was captured for another `{kind}`{different}: the replay computes with the "
            "parameters of that one",
            self.state,
            read,
            (),
            changed_at=now_at,
            chooses_graph=False,
            fix="give each model its own graphs: keep them with it, not in a dictionary that all"
            " share, or make the model a part of the key",
        )


def _owner(
    watched: Watched,
    value: Any,
    external: Collection[int],
    parts: Collection[int],
    *,
    is_own: bool = False,
) -> _Owner | None:
    """What captured code reads by this name, if it owns parameters that the graph reads, and
    another one there were a mistake. ``is_own``: whatever the name means elsewhere."""
    use = watched.use
    # The lines around a capture may give the name to the next model.
    is_reused = not is_own and not use.steps and isinstance(watched.root, NameIn)
    if use.written or use.tested or is_reused or is_internal_file(watched.frame.file):
        return None
    tensors, numbers = _tensors_of(value) & frozenset(external), _numbers_of_optimizer(value)
    if not tensors and not (numbers and _steps_in(value, external)):
        return None
    if use.steps and id(resolve(watched.root(), use.steps[:-1])) in parts:
        return None
    kinds = {torch.nn.Module: "module", Optimizer: "optimizer"}
    kind = next((name for kind, name in kinds.items() if isinstance(value, kind)), "object")
    subject = ("owner", watched.key or (watched.frame, use.text))
    return _Owner(kind, State("owner", (Identity(value),)), tensors, numbers, subject)


_KEEP_OPTIMIZER = (
    "keep the optimizer, and reset its state in place (`zero_()` of each tensor; a learning rate in"
    " a tensor by `fill_()`), or capture again with the new one"
)


def _steps_in(optimizer: Optimizer, external: Collection[int]) -> bool:
    """Whether a graph uses a parameter of an optimizer."""
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    return any(key_of(parameter) in external for parameter in parameters)


def _numbers_of_optimizer(value: Any) -> tuple[dict[str, Any], ...]:
    """The hyperparameters of each group of an optimizer, and its class; () of anything else."""
    if not isinstance(value, Optimizer):
        return ()
    return tuple(
        {"class": type(value)}
        | {key: each for key, each in group.items() if type(each) in (bool, int, float, tuple)}
        for group in value.param_groups
    )


def _tensors_of(value: Any) -> frozenset[int]:
    """The keys of the parameters and buffers of a module, or of the modules that are attributes of
    an object; of the state of an optimizer."""
    if isinstance(value, torch.nn.Module):
        return keys_in(value)
    if isinstance(value, Optimizer):
        rates = [
            [each for key, each in group.items() if key != "params"] for group in value.param_groups
        ]
        return frozenset(filter(None, map(key_of, tensors_in((list(value.state.values()), rates)))))
    if isinstance(value, types.ModuleType | type | torch.Tensor):
        return frozenset()
    fields = attribute_of(value, "__dict__")
    parts = fields.values() if isinstance(fields, dict) else ()
    modules = [part for part in list(parts) if isinstance(part, torch.nn.Module)]
    return frozenset(itertools.chain.from_iterable(map(keys_in, modules)))


def _tensors_of_items(container: Any) -> frozenset[int]:
    """The keys of what the modules and optimizers in a container own."""
    if isinstance(container, torch.nn.Module):
        return keys_in(container)
    items = list(container.values() if isinstance(container, dict) else container)[:_ITEMS]
    owners = [item for item in items if isinstance(item, torch.nn.Module | Optimizer)]
    return frozenset(itertools.chain.from_iterable(map(_tensors_of, owners)))


def _is_forward(code: types.CodeType) -> bool:
    """A ``forward`` of PyTorch's own modules, whose fields the user sets."""
    in_modules = package_part(code.co_filename).startswith("/torch/nn/modules/")
    return in_modules and code.co_name == "forward"


def _passed_by(frame: types.FrameType) -> set[tuple[type, Any]]:
    """The numbers that a function of ``torch.nn.functional`` passes to what it is calling now.
    PyTorch's C++ may compute others from them before it runs an op: ``label_smoothing``."""
    code = frame.f_code
    if package_part(code.co_filename) != "/torch/nn/functional.py":
        return set()
    values = locals_of(frame)
    # A momentum is not always used: ``_numbers_of`` knows when.
    names = names_in_expression(code, frame.f_lasti).local - {"momentum"}
    numbers = (values.get(name) for name in names)
    return {(type(value), value) for value in numbers if type(value) in (int, float)}


def _numbers_of(op: Op) -> set[tuple[type, Any]]:
    args = op.args
    if "batch_norm" in op.name and not op.written:
        # It takes a momentum, and uses it only where it updates the statistics.
        args = args[:6]
    leaves = pytree.tree_leaves((args, op.kwargs))
    return {(type(leaf), leaf) for leaf in leaves if type(leaf) in (int, float, bool)}
