"""What captured code reads by name on the host: numbers, flags, tables, lists, functions, modules.

What follows if a value were another one at a replay is known from where it goes (``frozen_flows``):
in the functions that the capture calls, and in its own lines. A ``forward`` of PyTorch's modules is
not followed: a field of the module counts if an op got its value.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from cgtool.detectors.frozen_values import FrozenValues
from cgtool.detectors.script.frozen import Frozen, bound_by
from cgtool.detectors.script.frozen_owners import owner_of, tensors_of_items
from cgtool.detectors.script.host_states import (
    COUNTED,
    State,
    items_of,
    keys_of_items,
    state_read,
)
from cgtool.detectors.script.read_places import Containers, Receivers, keeps_alive, of_the_same
from cgtool.findings import code
from cgtool.model.capture import Frame, Frames
from cgtool.model.finding import Code
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
    behind,
    resolve,
    weakly,
)
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
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.observe.uses import ONE, Use, name_chain
from cgtool.torch_compat.private import pytree

CONTROL_FLOW_FROZEN = code("control-flow-frozen")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")

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
                self.lists |= {(file, line, keys_of_items(each)) for each in lists}
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
        containers = Containers(self.flows.watched)
        written = {(each.frame, each.use.text) for each in self.flows.watched if each.use.written}
        # What it was before the captured code made it is not known here (`first_calls`).
        made = {each.key for each in self.flows.made(self.reaching)}
        receivers = Receivers(self.flows.watched)
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
            owner = owner_of(watched, value, external, parts)
            state = state_read(use, value) if owner is None else owner.state
            meaning = None if owner is None else owner.meaning
            if owner is None and state is not None:
                meaning = self._code_of(use, state, frame, watched.key)
            if state is None or meaning is None:
                continue
            if owner is None:
                for place_ in receivers.of(watched):
                    yield self._frozen(watched, place_, state, meaning, value)
            if keeps_alive(watched) and state.kind != "value":
                continue
            if owner is not None:
                look_up, local_to, _ = _looked_up(use, root, watched.owner)
                yield owner.frozen(use, look_up, self._read_at(frame), local_to)._replace(
                    owner=watched.owner
                )
            else:
                yield self._frozen(watched, watched, state, meaning, value)

    def _is_passed(self, watched: Watched, value: Any) -> bool:
        """Whether a container is passed to an op as a whole."""
        use, file = watched.use, watched.frame.file
        if (
            not isinstance(behind(value), COUNTED)
            or use.written
            or use.called
            or is_internal_file(file)
        ):
            return False
        place = file, statement_start(file, use.line)
        return (*place, keys_of_items(items_of(value))) in self.lists

    def _counted(self, watched: Watched, value: Any, containers: Containers) -> Iterator[Frozen]:
        """A container of tensors, whose number of items the captured code asks."""
        watched = replace(watched, use=replace(watched.use, counted=watched.use.counted or "loop"))
        state = state_read(watched.use, value)
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
        before = {Identity(item) for item in items_of(value)}
        for place in containers.places_of(watched):
            frozen, use = self._frozen(watched, place, state, meaning, value), place.use
            name = f"{'bool' if use.counted == 'empty' else 'len'}({use.text})"
            if isinstance(place.root, NameIn) and not use.steps:
                look_up, *_ = _looked_up(use, place.root, place.owner)
                frozen = frozen._replace(read=of_the_same(before, look_up, frozen.read))
            tensors = frozenset(filter(None, map(key_of, tensors_in(value))))
            yield frozen._replace(reason=why, name=name, tensors=tensors, fix=_FIX_OF_COUNT)

    def _read_at(self, frame: Frame) -> Frames:
        if is_internal_file(frame.file):
            return self.forwards.get((frame.file, frame.function), ())
        return self.chains.get((frame.file, frame.line)) or (frame,)

    def _frozen(
        self, watched: Watched, place: Watched, state: State, meaning: Code, value: Any
    ) -> Frozen:
        """``place``: ``watched``, or that which its object is read from."""
        look_up, local_to, subject = _looked_up(place.use, place.root, place.owner)
        if subject is None and watched.key is not None and meaning == CONTROL_FLOW_FROZEN:
            subject = ("branch", watched.key)
        read_at = self._read_at(watched.frame)
        tensors = tensors_of_items(value) if state.kind == "items" else frozenset()
        named = _named(meaning, place.use, state, look_up, read_at, local_to, subject)
        fix = self._fix_of(watched, state) if meaning == PYTHON_SCALAR_FROZEN else None
        return named._replace(tensors=tensors, fix=fix, owner=place.owner)

    def _fix_of(self, read: Watched, state: State) -> str | None:
        """The fix for a value that no op computes with: a key that selects from a container, what
        is only compared, or something other than a number. None for a number, which has the fix of
        the page."""
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
        return None if is_number and not read.use.tested else _FIX_OF_OPTION

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
            owner = owner_of(watched, watched.look_up(), external, (), is_own=True)
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
        now = state_read(use, resolve(root(stack), use.steps), state)
        return now if now is not None and now.kind == state.kind else MISSING

    targets, local_to = bound_by(use, local_to)
    return Frozen(
        meaning, reason, state, read, read_at, use.text, targets, local_to, subject=subject
    )


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
