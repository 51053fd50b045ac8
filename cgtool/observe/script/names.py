"""The names by which a script holds what a capture reads, and what those names hold later.

A path from a name to a tensor, or a name that captured lines read, is looked up again before each
replay. Neither keeps anything alive: objects are referenced weakly, locals by their frame while it
runs, and what is read of a frame is released at once.
"""

from __future__ import annotations

import ast
import itertools
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

import torch

from cgtool.observe.frames import callers, is_internal, line_of, locals_of
from cgtool.observe.lookup import MISSING, Identity, cells_of, content_of, in_slots, resolve, weakly
from cgtool.observe.source import names_in, tree_of
from cgtool.observe.tensors import key_of
from cgtool.observe.uses import Step
from cgtool.torch_compat.private import buffers_of, children_of, parameters_of
from cgtool.torch_compat.weak import Weak

_ATTRIBUTES = 64
"""Attributes and items looked at in one object."""
_DEPTH = 2
"""Steps from a name, a module or an optimizer to an object that is looked into."""
_MODULE_FIELDS = frozenset(vars(torch.nn.Module()))
_END_OF_FILE = 1 << 30

Stack = dict[int, FrameType]
"""Frames that run, by identity, innermost first."""


def stack_of(frame: FrameType | None) -> Stack:
    """The user's frames from ``frame`` outward."""
    return {id(each): each for each in callers(frame) if not is_internal(each.f_code)}


def waiting_beside(stack: Stack) -> Stack:
    """The user's frames of the coroutines that wait in other tasks of the event loop that runs."""
    asyncio: Any = sys.modules.get("asyncio")
    try:
        tasks = set() if asyncio is None else asyncio.all_tasks()
    except RuntimeError:  # No loop runs.
        return {}
    frames = [frame for task in tasks for frame in _frames_awaited(task.get_coro())]
    return {
        id(each): each for each in frames if id(each) not in stack and not is_internal(each.f_code)
    }


def suspended_in(stack: Stack) -> Stack:
    """The user's frames of the generators that wait for their next call, and that the running code
    has by a name, or in a container or an object by one."""
    found: Stack = {}
    for frame in stack.values():
        for _, value, _ in names_of(frame):
            parts = () if isinstance(value, GeneratorType) else parts_of(value)
            for each in (value, *(part for _, part in parts)):
                own = each.gi_frame if isinstance(each, GeneratorType) else None
                if own is not None and id(own) not in stack and not is_internal(own.f_code):
                    found[id(own)] = own
    return found


def _frames_awaited(coroutine: Any) -> Iterator[FrameType]:
    """The frame of a coroutine, and of those that it waits for."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None)


def names_of(frame: FrameType) -> Iterator[tuple[str, Any, bool]]:
    """(name, value, is global) of all that the code of a frame can name."""
    if frame.f_code.co_flags & 1:
        for name, value in locals_of(frame).items():
            yield name, value, False
    for name in names_in(frame.f_code):
        if name in frame.f_globals:
            yield name, frame.f_globals[name], True


# Paths to tensors.

Root = Callable[[Stack], Any]
"""Looks up an object; returns None or ``MISSING`` if it is gone."""


@dataclass(frozen=True)
class Path:
    """One way from a name to a tensor."""

    kind: str
    """``name``, ``attribute``, ``item``, ``parameter``."""
    text: str
    """As written in Python: ``plan.idx``."""
    root: Root
    """Looks up what the name refers to now."""
    steps: tuple[Step, ...] = ()
    """From there to the tensor."""
    frame: int | None = None
    """Identity of the frame of a local."""
    module: weakref.ref[torch.nn.Module] | None = None
    optimizer: weakref.ref[torch.optim.Optimizer] | None = None
    """Whose state the tensor is."""
    way: tuple[Identity, ...] = ()
    """What the name refers to, and what is behind each step but the last, when it was found."""

    def moved(self, stack: Stack) -> Step | None:
        """The name, or the first step but the last, that leads to another object now."""
        for number, before in enumerate(self.way):
            if Identity(resolve(self.root(stack), self.steps[:number])) != before:
                return self.steps[number - 1] if number else self.name
        return None

    @property
    def name(self) -> Step:
        """Where it begins."""
        return ("name", self.text.partition("[")[0].partition(".")[0])

    def look(self, stack: Stack) -> Any:
        """What the path leads to now."""
        return resolve(self.root(stack), self.steps)


class Holders:
    """The tensors of what the code around a capture can name: modules with their parameters,
    optimizers with their state, other objects and containers."""

    def __init__(self) -> None:
        self._known: set[tuple[int, Hashable]] = set()
        """What was looked into. A container, or an object with slots, once for each way to it: it
        may have an argument's name, which is soon gone, besides that in the code which goes on;
        and it may be the current one of several in a list."""
        self._paths: dict[int, list[Path]] = {}
        """Paths by key of the storage."""
        self._functions: dict[int, list[Weak[FunctionType]]] = {}
        """By identity of a frame: the functions whose call it is, as far as their cells tell."""

    def variable(self, frame: FrameType, name: str) -> Callable[[], Any] | None:
        """Looks up a variable that a running function shares with the one around it, for as long as
        the function lives; None if the name is none."""
        code = frame.f_code
        if name not in code.co_freevars:
            return None
        if id(frame) not in self._functions:
            found = cells_of(code, locals_of(frame))
            self._functions[id(frame)] = [Weak(function) for function, _ in found]
        functions, index = self._functions[id(frame)], code.co_freevars.index(name)

        def look_up() -> Any:
            alive = next((each for weak in functions if (each := weak()) is not None), None)
            cells = (alive and alive.__closure__) or ()
            return content_of(cells[index])() if index < len(cells) else MISSING

        return look_up

    def find(self, key: int) -> list[Path]:
        """The paths to a storage: if it belongs to a parameter or buffer, only that one."""
        paths = self._paths.get(key, [])
        return [path for path in paths if path.kind == "parameter"][:1] or paths

    def add(self, text: str, value: Any, root: Root, frame: int | None = None) -> None:
        """``frame``: identity of the frame of a local."""
        if isinstance(value, torch.nn.Module):
            for path, module in value.named_modules(prefix=text):
                self._add_module(path, module)
        elif isinstance(value, torch.optim.Optimizer):
            self._add_optimizer(text, value)
        else:
            named = (text, frame) if weakly(value) is None else None
            self._add_parts(text, value, root, (), frame, named)

    def _add_module(self, text: str, module: torch.nn.Module) -> None:
        if (id(module), None) in self._known:
            return
        owner = weakref.ref(module)
        for table in (parameters_of(module), buffers_of(module)):
            for name, tensor in table.items():
                step: Step = ("attribute", name)
                path = Path("parameter", f"{text}.{name}", follows(owner), (step,), None, owner)
                self._note(tensor, path)
        self._add_parts(text, module, follows(owner), ())

    def _add_optimizer(self, text: str, optimizer: torch.optim.Optimizer) -> None:
        if (id(optimizer), None) in self._known:
            return
        self._known.add((id(optimizer), None))
        owner = weakref.ref(optimizer)

        def state_of(parameter: Callable[[], Any], _stack: Stack) -> Any:
            alive = owner()
            return MISSING if alive is None else alive.state.get(parameter(), MISSING)

        for parameter, state in optimizer.state.items():
            root = partial(state_of, Weak(parameter))
            for step, part in parts_of(state):
                inner = f"{text}.state[...][{step[1]!r}]"
                if isinstance(part, torch.Tensor):
                    self._note(part, Path("item", inner, root, (step,), optimizer=owner))
                else:
                    self._add_parts(inner, part, root, (step,))
        groups, text = ("attribute", "param_groups"), f"{text}.param_groups"
        self._add_parts(text, optimizer.param_groups, follows(owner), (groups,))

    def _add_parts(
        self,
        text: str,
        value: Any,
        root: Root,
        steps: tuple[Step, ...],
        frame: int | None = None,
        named: Hashable = None,
        way: tuple[Identity, ...] = (),
    ) -> None:
        """What is inside an object, reached from ``root`` by ``steps``. ``named``: the name of the
        container that it is a part of, if it is. ``way``: as of ``Path``, to the object."""
        known = id(value), (named if weakly(value) is not None else (named, text))
        if known in self._known or len(steps) > _DEPTH:
            return
        self._known.add(known)
        if len(way) == len(steps):
            way = (*way, Identity(value))
        for step, part in parts_of(value):
            kind, name = step
            inner = f"{text}.{name}" if kind == "attribute" else f"{text}[{name!r}]"
            if isinstance(part, torch.Tensor):
                self._note(part, Path(kind, inner, root, (*steps, step), frame, way=way))
            elif isinstance(part, torch.nn.Module | torch.optim.Optimizer):
                self.add(inner, part, root)
            else:
                self._add_parts(inner, part, root, (*steps, step), frame, named, way)

    def _note(self, tensor: torch.Tensor | None, path: Path) -> None:
        key = None if tensor is None else key_of(tensor)
        if key is not None:
            self._paths.setdefault(key, []).append(path)


def paths_to(key: int, frame: FrameType | None, holders: Holders) -> list[Path]:
    """The names by which the running code can reach a storage, the innermost frame's first."""
    paths: list[Path] = []
    visited: set[tuple[int, str]] = set()
    for running in stack_of(frame).values():
        for name, value, is_global in names_of(running):
            owner = id(running.f_globals) if is_global else id(running)
            if (owner, name) in visited:
                continue
            visited.add((owner, name))
            root = _looks_up(running, name, holders, is_global=is_global)
            where = None if is_global else id(running)
            if not isinstance(value, torch.Tensor):
                # Objects outlive the frames that name them.
                weak = None if is_global else weakly(value)
                holders.add(name, value, root if weak is None else follows(weak), where)
            elif key_of(value) == key:
                paths.append(Path("name", name, root, frame=where))
    held = holders.find(key)
    return held if held and held[0].kind == "parameter" else paths + held


def follows(reference: Callable[[], Any]) -> Root:
    """What does not depend on what runs."""
    return lambda _stack: reference()


def _looks_up(frame: FrameType, name: str, holders: Holders, *, is_global: bool) -> Root:
    code, number, names = frame.f_code, id(frame), frame.f_globals
    value = None if is_global else locals_of(frame).get(name)
    # What has no weak reference is held by nothing but the variable.
    is_held = isinstance(value, torch.Tensor | dict | list | tuple)
    shared = holders.variable(frame, name) if is_held else None

    def look_up(stack: Stack) -> Any:
        if is_global:
            return names.get(name, MISSING)
        running = stack.get(number)
        if running is None or running.f_code is not code:
            return MISSING if shared is None else shared()
        return locals_of(running).get(name, MISSING)

    return look_up


def parts_of(value: Any) -> list[tuple[Step, Any]]:
    """Attributes of an object, or items of a container: the first ones."""
    if isinstance(value, torch.Tensor | ModuleType | type):
        return []
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, dict | list | tuple):
        # Not `value.items()`, which may be the script's own.
        items = dict.items(value) if isinstance(value, dict) else enumerate(value)
        kind = "item"
    else:
        kind = "attribute"
        items = itertools.chain(getattr(value, "__dict__", {}).items(), in_slots(value))
    if isinstance(value, torch.nn.Module):
        items = ((name, part) for name, part in items if name not in _MODULE_FIELDS)
    named = ((name, part) for name, part in items if isinstance(name, str | int))
    return [((kind, name), part) for name, part in itertools.islice(named, _ATTRIBUTES)]


def is_field_of_modules(name: str) -> bool:
    """Whether PyTorch gives an attribute of this name to every module."""
    return name in _MODULE_FIELDS


# Lines of a capture.


def region_of(frame: FrameType) -> tuple[int, int]:
    """First and last line of the ``with`` statement that the frame is entering; if it is entering
    none, its line and the end of the file."""
    line = line_of((frame.f_code, frame.f_lasti))
    region = (line, _END_OF_FILE)
    for node in ast.walk(tree_of(frame.f_code.co_filename)):
        if not isinstance(node, ast.With):
            continue
        first = node.body[0].lineno
        if node.lineno <= line < first or node.lineno == line == first:
            region = (node.lineno, node.end_lineno or line)
    return region


def name_in(frame: FrameType, name: str, *, has_parts: bool) -> Root:
    """What a name means in the frame of a capture, else in a later call of its function; where none
    runs, the object that it named in the capture, if what is read is a part of it (``has_parts``),
    or ``MISSING``. The frame itself would keep alive what the script deletes."""
    code, number, named = frame.f_code, id(frame), _value_in(frame, name)
    outlives = None
    if has_parts:
        outlives = partial(_itself, named) if _is_data(named) else weakly(named)

    def look_up(stack: Stack) -> Any:
        running = stack.get(number)
        if running is None or running.f_code is not code:
            running = next((each for each in stack.values() if each.f_code is code), None)
        if running is not None:
            return _value_in(running, name)
        alive = None if outlives is None else outlives()
        return MISSING if alive is None else alive

    return look_up


def another_self(kind: type, own: Any, stack: Stack) -> Any:
    """The object of a class whose method runs; None if there is none, if a frame in between has a
    name for ``own`` (None if that is gone), or if the object leads to it."""
    for frame in stack.values():
        values = locals_of(frame)
        if own is not None and any(value is own for value in values.values()):
            return None
        if frame.f_code.co_varnames[:1] == ("self",) and type(values.get("self")) is kind:
            return None if _leads_to(own, values["self"]) else values["self"]
    return None


def _leads_to(own: Any, start: Any) -> bool:
    """Whether an object is a part of another one, of the items of its containers, or of others of
    its class there."""
    known, pending = {id(start)}, [start]
    while pending:
        value = pending.pop()
        parts = [part for _, part in parts_of(value)]
        if isinstance(value, torch.nn.Module):
            parts += children_of(value).values()
        containers = [part for part in parts if isinstance(part, list | tuple | dict)]
        parts += [item for container in containers for _, item in parts_of(container)]
        if own is not None and any(part is own for part in parts):
            return True
        new = [part for part in parts if type(part) is type(own) and id(part) not in known]
        known.update(map(id, new))
        pending += new
    return False


def another_argument(code: CodeType, name: str, own: Any, stack: Stack) -> Any:
    """What a function that runs has as an argument; None if it does not run, or if a frame in
    between has a name for ``own`` (None if that is gone)."""
    for frame in stack.values():
        values = locals_of(frame)
        if own is not None and any(value is own for value in values.values()):
            return None
        if frame.f_code is code:
            return values.get(name)
    return None


def _value_in(frame: FrameType, name: str) -> Any:
    return {**frame.f_globals, **locals_of(frame)}.get(name, MISSING)


def _is_data(value: Any, depth: int = 3) -> bool:
    """Whether it is a container of numbers and texts, which may be kept alive."""
    if type(value) in (dict, list, tuple):
        parts = value.values() if type(value) is dict else value
        return depth > 0 and all(_is_data(part, depth - 1) for part in parts)
    return value is None or type(value) in (bool, int, float, complex, str)


def _itself(value: Any) -> Any:
    return value
