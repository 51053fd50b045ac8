"""State on the host that captured code reads and that has changed by the replay.

A graph keeps what its capture read: numbers, flags and tables of Python by name, fields, layers,
hooks and modes of modules, environment variables, settings of PyTorch, hyperparameters of
optimizers. Each source of such state is a class whose ``changes`` compares now with the capture.

Functions that the capture calls are read as a whole (``host_reads``), and of PyTorch's modules the
``forward``. Of the functions that were running when the capture began, its lines count, and their
locals do too. A finding is at the line that changed the value, else at the line that read it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from cgtool.detectors.preflight import frozen_by
from cgtool.detectors.reporting import Detector, on
from cgtool.detectors.script.inputs import ModuleChanges
from cgtool.findings import code
from cgtool.model.capture import Frame
from cgtool.model.finding import ERROR, Code
from cgtool.observe.call_sites import constructed_at
from cgtool.observe.frames import frames_of, is_internal, is_internal_file, line_of, package_part
from cgtool.observe.host_reads import HostReads, resolve
from cgtool.observe.script import events
from cgtool.observe.script.changes import Target, changed_at
from cgtool.observe.script.names import Stack, captured_names, locals_of, stack_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import Op, WatchedGraph
from cgtool.observe.source import Use, is_condition
from cgtool.torch_compat.private import (
    BACKWARD_HOOKS,
    FORWARD_HOOKS,
    Dropout,
    children_of,
    pytree,
)

CHILD_MODULE_HOOKS_CAPTURED = code("child-module-hooks-captured")
CONTROL_FLOW_FROZEN = code("control-flow-frozen")
CPU_STATE_STEP_COUNTER = code("cpu-state-step-counter")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")
TRAIN_EVAL_TOGGLE = code("train-eval-toggle")

_FULL_CHECKS = 256
"""Replays of a graph that are all looked at; of those after, one in as many."""
_ITEMS = 4096
"""Items of a container that are looked at."""
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


class Change(NamedTuple):
    """Something that a capture read, and that is different now."""

    code: Code
    reason: str
    read_at: tuple[Frame, ...]
    evidence: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    """What the line that changed it must change."""
    local_to: int | None = None
    """Identity of the frame whose local variable it is."""
    changed_at: tuple[Frame, ...] = ()
    """The line that changed it, if it is known already."""
    severity: str | None = None


class State(NamedTuple):
    """A value of the host, reduced to what a comparison needs."""

    kind: str
    """``value``; ``table`` (of numbers or texts); ``items`` (other objects, in order);
    ``function``."""
    content: tuple[Hashable, ...]
    """Values, or identities of objects."""

    @property
    def text(self) -> str:
        """As it is shown."""
        if self.kind not in ("value", "table"):
            return f"{len(self.content)} items" if self.kind == "items" else "a function"
        shown = repr(self.content[0] if self.kind == "value" else list(self.content))
        return shown if len(shown) < 60 else shown[:57] + "..."


def state_of(value: Any) -> State | None:
    """None for what is compared elsewhere (tensors, modules) or cannot be."""
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return State("value", (value,))
    if isinstance(value, _FUNCTIONS):
        return State("function", (id(getattr(value, "__func__", value)),))
    if isinstance(value, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict):
        return State("items", tuple(map(id, children_of(value).values())))
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)[:_ITEMS]
        if any(isinstance(item, torch.Tensor) for item in items):
            return None
        if all(type(item) in (bool, int, float, str) for item in items):
            return State("table", tuple(items))
        return State("items", tuple(map(id, items)))
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        small = getattr(value, "size", _ITEMS) < _ITEMS
        return State("table", tuple(value.reshape(-1).tolist()) if small else (value.tobytes(),))
    return None


# Names: numbers, flags, tables, lists and functions that captured code reads by name.


class _Name(NamedTuple):
    """A name that captured code read."""

    use: Use
    code: Code
    read_at: tuple[Frame, ...]
    look_up: Callable[[Stack], Any]
    state: State
    """At the capture."""
    local_to: int | None

    def changes(self, stack: Stack) -> Iterator[Change]:
        now = state_of(self.look_up(stack))
        if now is None or now.kind != self.state.kind or now == self.state:
            return
        text = self.use.text
        if self.code == CONTROL_FLOW_FROZEN:
            reason = f"`{text}` decides which ops run, and has changed since the capture; the "
            reason += "replay repeats the captured ops"
        else:
            reason = f"`{text}` has changed since the capture; the replay uses the old value"
        path: tuple[Target, ...] = (("name", self.use.root), *self.use.steps)
        targets = path[-1:] if path[-1][0] != "item" else path[:-3:-1]
        yield Change(
            self.code,
            reason,
            self.read_at,
            (f"{text} was {self.state.text} when captured, and is {now.text} now",),
            targets,
            None if self.use.steps else self.local_to,
        )


@dataclass
class _Reads:
    """What the code of one capture reads, while it is captured."""

    host: HostReads = field(default_factory=HostReads)
    numbers: dict[tuple[str, str], set[tuple[type, Any]]] = field(default_factory=dict)
    """Passed to ops, by the file and the function that called them."""
    chains: dict[tuple[str, int], tuple[Frame, ...]] = field(default_factory=dict)
    """By the file and line that called an op."""
    forwards: dict[tuple[str, str], tuple[Frame, ...]] = field(default_factory=dict)
    """By file and function of a ``forward`` of PyTorch's: the user's line that called it."""

    def note(self, op: Op, frame: types.FrameType | None, outer: dict[int, int]) -> None:
        """An op was captured; ``frame`` called it."""
        numbers = _numbers_of(op)
        chain = () if op.call is None else op.call.chain
        while frame is not None and id(frame) not in outer:
            function = frame.f_code.co_filename, frame.f_code.co_qualname
            if not is_internal(frame.f_code) or _is_forward(frame.f_code):
                self.host.add_frame(frame)
                locals_of(frame)
                self.numbers.setdefault(function, set()).update(numbers)
                if _is_forward(frame.f_code):
                    self.forwards.setdefault(function, frames_of(chain))
            frame = frame.f_back
        for site in chain[:1]:
            self.chains.setdefault((site[0].co_filename, line_of(site)), frames_of(chain))
        for site in chain[:3]:
            function = site[0].co_filename, site[0].co_qualname
            self.numbers.setdefault(function, set()).update(numbers)

    def code_of(self, use: Use, state: State, frame: Frame) -> Code | None:
        """What it would mean if the value that ``frame`` reads were another one at a replay."""
        in_forward = is_internal_file(frame.file)
        if use.written or use.text.endswith(".training"):
            return None
        if state.kind == "function":
            return CONTROL_FLOW_FROZEN if use.called and use.steps and not in_forward else None
        if use.called:
            return None
        if state.kind == "items":
            return CONTROL_FLOW_FROZEN if use.tested and not in_forward else None
        numbers = self.numbers.get((frame.file, frame.function), set())
        passed = any((type(value), value) in numbers for value in state.content)
        if in_forward:
            return PYTHON_SCALAR_FROZEN if passed else None
        if use.tested and not (passed and state.kind == "table"):
            return CONTROL_FLOW_FROZEN
        # An op on the line may get a number that is computed from this one.
        calls_op = (frame.file, frame.line) in self.chains
        is_number = all(type(value) in (int, float) for value in state.content)
        return PYTHON_SCALAR_FROZEN if passed or (calls_op and is_number) else None

    def names(self) -> Iterator[_Name]:
        """The names that functions of the captured code read."""
        for watched in self.host.watched:
            use, root, frame = watched.use, watched.root, watched.frame
            state = state_of(resolve(root(), use.steps))
            code = None if state is None else self.code_of(use, state, frame)
            if state is None or code is None:
                continue
            is_weak = isinstance(root, weakref.ref)
            if use.scope == "argument" and not is_weak and state.kind != "value":
                # It would keep alive what the script has passed.
                continue
            read_at = self.chains.get((frame.file, frame.line)) or (frame,)
            if is_internal_file(frame.file):
                read_at = self.forwards.get((frame.file, frame.function), ())
            look_up = partial(_look_up, root, use)
            yield _Name(use, code, read_at, look_up, state, None)

    def counters(self) -> Iterator[tuple[str, Frame, State]]:
        """Numbers that the captured code changes itself, and that one of its ops reads."""
        for written in self.host.watched:
            if not written.use.written or written.use.tested:
                continue
            line = written.frame
            reads = [
                watched
                for watched in self.host.watched
                if watched.use.text == written.use.text and not watched.use.written
            ]
            reads_on_line = any(
                (read.frame.file, read.frame.line) == (line.file, line.line) for read in reads
            )
            read_by_op = any(
                read.owner == written.owner and (read.frame.file, read.frame.line) in self.chains
                for read in reads
            )
            state = state_of(resolve(written.root(), written.use.steps))
            if reads_on_line and read_by_op and state is not None and state.kind == "value":
                yield written.use.text, line, state


def _look_up(root: Callable[[], Any], use: Use, _stack: Stack) -> Any:
    return resolve(root(), use.steps)


def _is_forward(code: types.CodeType) -> bool:
    """A ``forward`` of PyTorch's own modules, whose fields the user sets."""
    in_modules = package_part(code.co_filename).startswith("/torch/nn/modules/")
    return in_modules and code.co_name == "forward"


def _numbers_of(op: Op) -> set[tuple[type, Any]]:
    args = op.args
    if "batch_norm" in op.name and not op.written:
        # It takes a momentum, and uses it only where it updates the statistics.
        args = args[:6]
    leaves = pytree.tree_leaves((args, op.kwargs))
    return {(type(leaf), leaf) for leaf in leaves if type(leaf) in (int, float, bool)}


# Modules: layers, `forward`, hooks.


class _ModuleState(NamedTuple):
    layers: tuple[int, ...]
    forward: int
    hooks: frozenset[Any]
    """Keys of the hooks, which PyTorch counts up."""


class _Module:
    """A module that ran in a capture, or is a part of one that did."""

    def __init__(
        self, module: torch.nn.Module, name: str, read_at: tuple[Frame, ...], *, backward: bool
    ) -> None:
        self.reference = weakref.ref(module)
        self.name = name
        """In its parent; empty for a module that has none."""
        self.read_at = read_at
        self.tables = (*FORWARD_HOOKS, *(BACKWARD_HOOKS if backward else ()))
        self.names = None if _is_container(module) else tuple(children_of(module))
        """Children added later do not run; a container runs all that it has."""
        self.state = self._state(module)

    def _state(self, module: torch.nn.Module) -> _ModuleState:
        children = children_of(module)
        names = tuple(children) if self.names is None else self.names
        own = module.__dict__.get("forward")
        forward = type(module).forward if own is None else getattr(own, "__func__", own)
        hooks = (key for table in self.tables for key in getattr(module, table))
        return _ModuleState(
            tuple(id(children.get(name)) for name in names), id(forward), frozenset(hooks)
        )

    def changes(self, _stack: Stack) -> Iterator[Change]:
        module = self.reference()
        if module is None:
            return
        before, now, kind = self.state, self._state(module), type(module).__name__
        if now.layers != before.layers:
            names = tuple(children_of(module)) if self.names is None else self.names
            replaced = [
                name
                for name, old, new in zip(names, before.layers, now.layers, strict=False)
                if old != new
            ]
            yield Change(
                CONTROL_FLOW_FROZEN,
                f"{kind} has other layers than at the capture; the replay runs the old ones",
                self.read_at,
                (f"{len(before.layers)} layers when captured, {len(now.layers)} now",),
                (
                    *(("item", int(name)) for name in replaced if name.isdigit()),
                    *(("attribute", name) for name in (*replaced, self.name)),
                ),
            )
        if now.forward != before.forward:
            yield Change(
                CONTROL_FLOW_FROZEN,
                f"`forward` of {kind} was replaced after the capture; the replay runs the old one",
                self.read_at,
                targets=(("attribute", "forward"),),
            )
        if now.hooks - before.hooks:
            yield Change(
                CHILD_MODULE_HOOKS_CAPTURED,
                f"a hook of {kind} was added after the capture; no replay runs it",
                self.read_at,
                targets=_ADDS_HOOK,
            )


_ADDS_HOOK: tuple[Target, ...] = tuple(
    ("call", f"register_{name}_hook")
    for name in ("forward", "forward_pre", "full_backward", "full_backward_pre")
)


def _is_container(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict)


# The environment, and settings of PyTorch.


class _Variable(NamedTuple):
    """An environment variable that captured code read."""

    name: str
    value: str | None
    read_at: tuple[Frame, ...]
    tested: bool

    def changes(self, _stack: Stack) -> Iterator[Change]:
        now = os.environ.get(self.name)
        if now != self.value:
            yield Change(
                CONTROL_FLOW_FROZEN if self.tested else PYTHON_SCALAR_FROZEN,
                f"the environment variable {self.name} has changed since the capture; the replay "
                "uses the old value",
                self.read_at,
                (f"{self.value!r} when captured, {now!r} now",),
                (("item", self.name),),
            )


_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv")
_CONVOLUTIONS = ("aten::convolution", "aten::cudnn_", "aten::_cudnn_", "aten::_slow_conv")
_ATTENTION = ("aten::_scaled_dot_product",)
_SETTINGS: tuple[tuple[str, Callable[[], Any], tuple[str, ...], tuple[Target, ...]], ...] = (
    (
        "torch.backends.cuda.matmul.allow_tf32",
        torch.get_float32_matmul_precision,
        _MATMULS,
        (("attribute", "allow_tf32"), ("call", "set_float32_matmul_precision")),
    ),
    *(
        (
            f"torch.backends.cuda.matmul.{name}",
            lambda name=name: getattr(torch.backends.cuda.matmul, name),
            _MATMULS,
            (("attribute", name),),
        )
        for name in (
            "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction",
            "fp32_precision",
        )
    ),
    *(
        (
            f"torch.backends.cudnn.{name}",
            lambda name=name: getattr(torch.backends.cudnn, name),
            _CONVOLUTIONS,
            (("attribute", name),),
        )
        for name in ("allow_tf32", "benchmark", "deterministic", "enabled")
    ),
    *(
        (
            f"torch.backends.cuda.{name}_sdp_enabled()",
            getattr(torch.backends.cuda, f"{name}_sdp_enabled"),
            _ATTENTION,
            (("call", f"enable_{name}_sdp"),),
        )
        for name in ("flash", "mem_efficient", "math")
    ),
)  # fmt: skip
"""Name, getter, ops whose kernels depend on it, and what a line that changes it does."""


class _Settings:
    """Settings of PyTorch that decide which kernels the captured ops launch.

    Only what a line of the script changes after the capture counts: a setting that a ``with``
    statement around the capture has changed is another one at the replay on purpose.
    """

    def __init__(self, graph: WatchedGraph) -> None:
        self.values = [
            (setting, _setting(setting[1])) for setting in _SETTINGS if graph.has_op(*setting[2])
        ]

    def changes(self, _stack: Stack) -> Iterator[Change]:
        for (name, getter, _, targets), before in self.values:
            now = _setting(getter)
            if now != before:
                yield Change(
                    CONTROL_FLOW_FROZEN,
                    f"`{name}` has changed since the capture; the replay launches the old kernels",
                    (),
                    (f"{before} when captured, {now} now",),
                    targets,
                )


def _setting(getter: Callable[[], Any]) -> Any:
    # PyTorch raises if a script mixes the old and the new names of a setting.
    with contextlib.suppress(RuntimeError, AttributeError):
        return getter()
    return None


_Source = _Name | _Module | _Variable | _Settings


class HostState(Detector):
    """Names, modules, environment and settings that captured code reads."""

    phase = "replay"

    def start(self) -> None:
        self._reads = _Reads()
        """Of the capture in progress."""
        self._modules: dict[weakref.ref[torch.nn.Module], tuple[Frame, ...]] = {}
        """That ran in it, and where."""
        self._variables: dict[str, _Variable] = {}
        """That it read."""
        self._sources: dict[int, list[_Source]] = {}
        """By number of the graph."""

    @on(events.CaptureBegan)
    def _begin(self, _event: events.CaptureBegan) -> None:
        self._reads, self._modules, self._variables = _Reads(), {}, {}

    @on(events.OpCaptured)
    def _note_op(self, event: events.OpCaptured) -> None:
        # On autograd's threads the frames of the call that waits for them.
        own = threading.get_ident() == self.script.capture_thread
        frame = sys._getframe(1) if own else self.script.frame()
        self._reads.note(event.op, frame, event.graph.outer_frames)

    @on(events.ModuleRuns)
    def _note_module(self, event: events.ModuleRuns) -> None:
        self._modules.setdefault(weakref.ref(event.module), self.script.place())

    @on(events.EnvironmentRead)
    def _note_variable(self, event: events.EnvironmentRead) -> None:
        place = self.script.place()
        if place and event.name not in self._variables:
            tested = is_condition(place[0].file, place[0].line)
            self._variables[event.name] = _Variable(event.name, event.value, place, tested)

    @on(events.CaptureEnded)
    def _end(self, event: events.CaptureEnded) -> None:
        graph, reads = event.graph, self._reads
        for text, line, state in reads.counters():
            self.report(
                CPU_STATE_STEP_COUNTER,
                f"`{text}` changes on the host with every call, and a replay does not change it",
                (line,),
                evidence=(f"{state.text} in the graph",),
                phase="capture",
            )
        self._sources[graph.number] = [
            *reads.names(),
            *_captured_locals(reads, self.script, graph),
            *self._captured_modules(graph),
            *self._variables.values(),
            _Settings(graph),
        ]
        # What leads to tensors would keep them alive.
        self._begin(events.CaptureBegan(graph))

    def _captured_modules(self, graph: WatchedGraph) -> Iterator[_Module]:
        backward = any(call.autograd_node for call in graph.record.calls)
        known: set[int] = set()
        graphed = None if graph.callable is None else graph.callable.module()
        for reference, read_at in self._modules.items():
            root = reference()
            for path, module in root.named_modules() if root is not None else ():
                # PyTorch replaces the forward of a graphed module, and calls its hooks.
                if id(module) not in known and module is not graphed:
                    known.add(id(module))
                    name = path.rpartition(".")[2]
                    yield _Module(module, name, read_at, backward=backward)

    @on(events.ReplayBegins)
    def _compare_with_capture(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        if graph.replays >= _FULL_CHECKS and graph.replays % _FULL_CHECKS:
            return
        if any(other is not graph and other.frames == graph.frames for other in self.script.graphs):
            # One graph for each value: what has changed since is the choice between them.
            return
        stack = stack_of(self.script.frame())
        for source in self._sources.get(graph.number, ()):
            for change in source.changes(stack):
                self._report(change, stack, graph)

    def _report(self, change: Change, stack: Stack, graph: WatchedGraph) -> None:
        place = changed_at(
            change.targets, stack.values(), graph.outer_frames, local_to=change.local_to
        )
        evidence = change.evidence
        if place and change.read_at:
            line = change.read_at[0]
            evidence = (*evidence, f"read at {Path(line.file).name}:{line.line}")
        if place or change.read_at:
            self.report(change.code, change.reason, place or change.read_at, evidence=evidence)


def _captured_locals(reads: _Reads, script: ObservedScript, graph: WatchedGraph) -> Iterator[_Name]:
    """The names that the lines of the capture itself read."""
    frame = script.frame()
    if frame is None:
        return
    stack = stack_of(frame)
    for name in captured_names(frame, graph.lines):
        state = state_of(name.look_up(stack))
        code = None if state is None else reads.code_of(name.use, state, name.place)
        if state is not None and code is not None:
            place = name.place
            read_at = reads.chains.get((place.file, place.line)) or (place,)
            is_global = frame.f_locals is frame.f_globals or name.use.scope == "global"
            local_to = None if is_global else name.frame
            yield _Name(name.use, code, read_at, name.look_up, state, local_to)


# Optimizers and modes.

_Values = dict[tuple[int, str], float]
"""Hyperparameters by index of the parameter group and name."""


def _hyperparameters(optimizer: Optimizer) -> _Values:
    return {
        (index, name): value
        for index, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if type(value) in (int, float, bool)
    }


class Steps(Detector):
    """A captured ``Optimizer.step`` whose learning rate, or another number, has changed since."""

    def start(self) -> None:
        self._steps: list[tuple[WatchedGraph, weakref.ref[Optimizer], _Values, tuple[Frame, ...]]]
        self._steps = []

    @on(events.OptimizerSteps)
    def _note_step(self, event: events.OptimizerSteps) -> None:
        graph, optimizer = self.script.capture, event.optimizer
        if graph is not None:
            values, place = _hyperparameters(optimizer), self.script.place()
            self._steps.append((graph, weakref.ref(optimizer), values, place))

    @on(events.ReplayBegins)
    def _compare_with_capture(self, event: events.ReplayBegins) -> None:
        for graph, reference, before, frames in self._steps:
            optimizer = reference()
            if optimizer is None or graph is not event.graph:
                continue
            now = _hyperparameters(optimizer)
            key = next((key for key in before if now.get(key, before[key]) != before[key]), None)
            if key is None:
                continue
            name, kind = key[1], type(optimizer).__name__
            self.report(
                frozen_by(optimizer),
                f"`{name}` of {kind} has changed since the capture; the replay uses the old value",
                constructed_at(optimizer) or frames,
                evidence=(f"{name} was {before[key]} when captured, and is {now[key]} now",),
                severity=ERROR,
                phase="replay",
            )


def _depends_on_mode(module: torch.nn.Module) -> bool:
    """True if ``forward`` of a module looks at ``training``, and it makes a difference."""
    if isinstance(module, Dropout):
        return bool(module.p > 0)
    forward = getattr(type(module).forward, "__code__", None)
    if forward is None:
        return False
    if "training" in forward.co_names:
        return True
    # Recurrent modules pass it to their kernel only where they have dropout.
    return isinstance(module, torch.nn.RNNBase) and module.dropout > 0


class Modes(Detector):
    """``train()`` or ``eval()`` after the capture."""

    def start(self) -> None:
        self._training: dict[int, dict[weakref.ref[torch.nn.Module], bool]] = {}
        """By number of the graph: of the modules that ran in the capture."""
        self._toggled = ModuleChanges()

    @on(events.ModuleChanged)
    def _module_changed(self, event: events.ModuleChanged) -> None:
        if event.is_train:
            self._toggled.note(event.module, self.script)

    @on(events.ModuleRuns)
    def _note_mode(self, event: events.ModuleRuns) -> None:
        graph, module = self.script.capture, event.module
        if graph is not None and _depends_on_mode(module):
            self._training.setdefault(graph.number, {})[weakref.ref(module)] = module.training

    @on(events.ReplayBegins)
    def _compare_with_capture(self, event: events.ReplayBegins) -> None:
        for reference, training in self._training.get(event.graph.number, {}).items():
            module = reference()
            if module is None or module.training == training:
                continue
            mode = "train()" if training else "eval()"
            self.report(
                TRAIN_EVAL_TOGGLE,
                f"{type(module).__name__} was captured in `{mode}`; the replay stays in that mode",
                self._toggled.since(module, event.graph) or None,
                phase="replay",
            )
            return
