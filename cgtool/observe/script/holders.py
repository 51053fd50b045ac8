"""The names, attributes and items by which the running code of the user holds tensors.

A path is found once and looked up again later. It keeps nothing alive: objects are referenced
weakly, locals by the frame that runs, and what is read of a frame is released at once.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FrameType, MemberDescriptorType, ModuleType
from typing import Any

import torch

from cgtool.observe.frames import callers, is_internal, locals_of
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.private import MODULE_TABLES, buffers_of, parameters_of
from cgtool.torch_compat.weak import Weak

MISSING = object()
"""What a path leads to that leads nowhere."""
_PARTS = 64
"""Attributes and items looked at in one object."""
_DEPTH = 3
"""Steps from a name, a module or an optimizer to a tensor."""
_OBJECTS = 20_000
"""Looked into at most."""
_MODULE_FIELDS = frozenset(vars(torch.nn.Module()))
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), type, ModuleType)

Stack = dict[int, FrameType]
"""The user's frames that run, by identity, innermost first."""
Step = tuple[str, str | int]
"""``attribute`` or ``item``, and its name."""
Root = Callable[[Stack], Any]
"""Looks up an object; ``MISSING`` if it is gone."""


def stack_of(frame: FrameType | None) -> Stack:
    """The user's frames from ``frame`` outward."""
    return {id(each): each for each in callers(frame) if not is_internal(each.f_code)}


@dataclass(frozen=True)
class Path:
    """One way from a name to a tensor."""

    kind: str
    """``name``, ``attribute``, ``item``, ``parameter`` (also a buffer), ``state`` (of an
    optimizer)."""
    text: str
    """As written in Python: ``plan.idx``."""
    root: Root
    steps: tuple[Step, ...] = ()
    """From there to the tensor."""
    owner: Callable[[], Any] = lambda: None
    """A weak reference to the module whose parameter or buffer it is, or to the optimizer whose
    state."""
    is_listed: bool = False
    """It leads through a list or a tuple."""

    def look(self, stack: Stack) -> Any:
        """What the path leads to now."""
        value = self.root(stack)
        for step in self.steps:
            value = _part(value, step)
        return value


def paths_from(stack: Stack) -> dict[int, list[Path]]:
    """By key of a storage: the paths to it from the names of running code, the nearest first."""
    search = _Search()
    for frame in stack.values():
        for name, value, root in _names_of(frame):
            search.add(name, value, root)
    search.run()
    return search.paths


def _names_of(frame: FrameType) -> Iterator[tuple[str, Any, Root]]:
    """All that the code of a frame can name."""
    code, number, names = frame.f_code, id(frame), frame.f_globals

    def of_frame(name: str, stack: Stack) -> Any:
        running = stack.get(number)
        is_same = running is not None and running.f_code is code
        return locals_of(running).get(name, MISSING) if running and is_same else MISSING

    def of_module(name: str, _stack: Stack) -> Any:
        return names.get(name, MISSING)

    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    for name, value in locals_of(frame).items() if is_function else ():
        yield name, value, partial(of_frame, name)
    for name in code.co_names if is_function else list(names):
        if name in names:
            yield name, names[name], partial(of_module, name)


class _Search:
    def __init__(self) -> None:
        self.paths: defaultdict[int, list[Path]] = defaultdict(list)
        self._pending: deque[tuple[str, Any, Root, tuple[Step, ...], bool]] = deque()
        self._known: dict[int, Any] = {}
        """The objects that were looked into, by identity: kept until the end, so that no other one
        gets the identity of one."""

    def add(self, text: str, value: Any, root: Root) -> None:
        """What a name leads to."""
        if isinstance(value, torch.Tensor):
            self._note(value, Path("name", text, root))
        elif not isinstance(value, _SIMPLE):
            self._pending.append((text, value, root, (), isinstance(value, list | tuple)))

    def run(self) -> None:
        while self._pending and len(self._known) < _OBJECTS:
            text, value, root, steps, is_listed = self._pending.popleft()
            if id(value) in self._known:
                continue
            self._known[id(value)] = value
            if not isinstance(value, dict | list | tuple):
                # Objects outlive the frames that name them.
                weak = _weakly(value)
                root, steps = (root, steps) if weak is None else (_follows(weak), ())
            if isinstance(value, torch.nn.Module):
                self._look_into_module(text, value)
            elif isinstance(value, torch.optim.Optimizer):
                self._look_into_optimizer(text, value)
            for kind, name, part in _parts_of(value):
                inner = f"{text}.{name}" if kind == "attribute" else f"{text}[{name!r}]"
                way = (*steps, (kind, name))
                if isinstance(part, torch.Tensor):
                    self._note(part, Path(kind, inner, root, way, is_listed=is_listed))
                elif not isinstance(part, _SIMPLE) and len(way) < _DEPTH:
                    listed = is_listed or isinstance(part, list | tuple)
                    self._pending.append((inner, part, root, way, listed))

    def _look_into_module(self, text: str, root: torch.nn.Module) -> None:
        for prefix, module in root.named_modules(prefix=text):
            if module is not root and id(module) not in self._known:
                self._pending.append((prefix, module, _follows(weakref.ref(module)), (), False))
        owner = weakref.ref(root)
        for table in (parameters_of(root), buffers_of(root)):
            for name, tensor in table.items():
                step: Step = ("attribute", name)
                self._note(
                    tensor, Path("parameter", f"{text}.{name}", _follows(owner), (step,), owner)
                )

    def _look_into_optimizer(self, text: str, optimizer: torch.optim.Optimizer) -> None:
        owner = weakref.ref(optimizer)

        def state_of(parameter: Callable[[], Any], _stack: Stack) -> Any:
            alive = owner()
            return MISSING if alive is None else alive.state.get(parameter(), {})

        for parameter, state in optimizer.state.items():
            for name, part in state.items() if isinstance(state, dict) else ():
                if isinstance(part, torch.Tensor):
                    inner, root = f"{text}.state[...][{name!r}]", partial(state_of, Weak(parameter))
                    self._note(part, Path("state", inner, root, (("item", name),), owner))
        for number, group in enumerate(optimizer.param_groups):
            for name, part in group.items():
                if isinstance(part, torch.Tensor):
                    way: tuple[Step, ...]
                    way = ("attribute", "param_groups"), ("item", number), ("item", name)
                    inner = f"{text}.param_groups[{number}][{name!r}]"
                    self._note(part, Path("item", inner, _follows(owner), way))

    def _note(self, tensor: torch.Tensor | None, path: Path) -> None:
        key = None if tensor is None else key_of(tensor)
        if key is not None:
            self.paths[key].append(path)


def _parts_of(value: Any) -> Iterator[tuple[str, str | int, Any]]:
    """Attributes of an object, or items of a container: the first ones."""
    parts: Iterator[tuple[Any, Any]]
    if isinstance(value, torch.optim.Optimizer):
        return
    if isinstance(value, dict):
        # Not `value.items()`, which may be the script's own.
        kind, parts = "item", iter(list(dict.items(value)))
    elif isinstance(value, list | tuple):
        kind, parts = "item", iter(list(enumerate(value)))
    else:
        kind, parts = "attribute", itertools.chain(_table_of(value).items(), _slots_of(value))
    skipped = _MODULE_FIELDS if isinstance(value, torch.nn.Module) else ()
    for name, part in itertools.islice(parts, _PARTS):
        if isinstance(name, str | int) and name not in skipped:
            yield kind, name, part


def _part(value: Any, step: Step) -> Any:
    kind, name = step
    if kind == "item":
        if isinstance(value, dict):
            return dict.get(value, name, MISSING)
        is_there = isinstance(value, list | tuple) and name in range(len(value))
        return value[name] if is_there else MISSING
    table = _table_of(value)
    tables: list[dict[Any, Any]] = [table, *(table.get(each) or {} for each in MODULE_TABLES)]
    for each in tables if isinstance(value, torch.nn.Module) else tables[:1]:
        if name in each:
            return each[name]
    return next((part for slot, part in _slots_of(value) if slot == name), MISSING)


def _table_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, without running its code."""
    try:
        table = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return table if isinstance(table, dict) else {}


def _slots_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that classes in Python keep outside of the ``__dict__`` of an object."""
    for kind in type(value).__mro__:
        for name, member in list(vars(kind).items()) if "__slots__" in vars(kind) else ():
            if isinstance(member, MemberDescriptorType):
                try:
                    part = member.__get__(value)
                except AttributeError:  # not set yet
                    continue
                yield name, part


def _weakly(value: Any) -> Callable[[], Any] | None:
    """A weak reference; None for what has none, and for streams and events, whose destructors leave
    weak references dangling."""
    if isinstance(value, torch.Event | torch.Stream):
        return None
    try:
        return Weak(value)
    except TypeError:
        return None


def _follows(reference: Callable[[], Any]) -> Root:
    """What does not depend on what runs."""

    def look_up(_stack: Stack) -> Any:
        value = reference()
        return MISSING if value is None else value

    return look_up
