"""Modes of modules, and numbers and parameters of optimizers, that are others at a replay than at
the capture, which the graph keeps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from cgtool.detectors.preflight import filled_rate, frozen_by
from cgtool.detectors.reporting import Detector
from cgtool.detectors.script.inputs import ModuleChanges
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import ERROR, Code
from cgtool.observe.call_sites import constructed_at
from cgtool.observe.script import events
from cgtool.observe.script.state import WatchedGraph
from cgtool.torch_compat.private import Dropout, Norm
from cgtool.torch_compat.weak import Weak

PARAMETERS_ADDED_OR_REMOVED = code("parameters-added-or-removed")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")
TRAIN_EVAL_TOGGLE = code("train-eval-toggle")

_GONE = object()
_CAPTURE_AGAIN = "add and remove parameters before the capture, or capture again afterwards"


class _Kept(NamedTuple):
    """Something that a graph keeps."""

    code: Code
    reason: str
    name: str
    """In the evidence."""
    subject: Hashable
    """Equal for the same thing in other captures."""
    before: Hashable
    read: Callable[[], Hashable]
    """Reads its value; ``_GONE`` if it is gone."""
    frames: Callable[[], Frames] = tuple
    """The line of the finding; () for the replay's."""
    fix: str | None = None
    severity: str | None = None


class Settings(Detector):
    """What a capture reads on the host of modules and optimizers, compared before each replay."""

    phase = "replay"

    def start(self) -> None:
        self._toggled = ModuleChanges()
        self._found: dict[Hashable, list[_Kept]] = {}
        """By what it is of: those of the capture in progress."""
        self._set: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Modules whose mode captured code sets itself."""
        self._kept: dict[int, list[_Kept]] = {}
        """By number of the graph."""
        self._captured: set[tuple[Hashable, Hashable]] = set()
        """Subjects, and the values with which graphs were captured."""

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        self._found, self._set = {}, weakref.WeakSet()

    def on_module_changed(self, event: events.ModuleChanged) -> None:
        if event.is_train:
            self._toggled.note(event.module, self.script)
            if self.script.capture is not None:
                self._set.update(event.module.modules())

    def on_module_runs(self, event: events.ModuleRuns) -> None:
        module, graph = event.module, self.script.capture
        is_new = id(module) not in self._found and module not in self._set
        if graph is not None and is_new and _depends_on_mode(module):
            self._found[id(module)] = [_mode_of(module, graph, self._toggled, self.script.place())]

    def on_optimizer_steps(self, event: events.OptimizerSteps) -> None:
        optimizer = event.optimizer
        if self.script.capture is not None and id(optimizer) not in self._found:
            self._found[id(optimizer)] = [*_numbers_of(optimizer, self.script.place())]

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        graph = event.graph
        kept = [each for found in self._found.values() for each in found]
        self._kept[graph.number] = kept
        self._captured |= {(each.subject, each.before) for each in kept}
        self._found = {}

    def on_graph_dropped(self, event: events.GraphDropped) -> None:
        self._kept.pop(event.graph.number, None)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        for kept in self._kept.get(event.graph.number, ()):
            now = kept.read()
            is_other = now not in (kept.before, _GONE)
            if is_other and (kept.subject, now) not in self._captured:
                self.report(
                    kept.code,
                    kept.reason,
                    kept.frames() or None,
                    evidence=(f"{kept.name} was {kept.before} when captured, and is {now} now",)
                    if kept.name
                    else (),
                    fix=kept.fix,
                    severity=kept.severity,
                )


def _of(thing: Any, read: Callable[[Any], Hashable]) -> Callable[[], Hashable]:
    """Reads it again of an object, while that lives."""
    reference = Weak(thing)

    def read_again() -> Hashable:
        alive = reference()
        return _GONE if alive is None else read(alive)

    return read_again


def _depends_on_mode(module: torch.nn.Module) -> bool:
    """Whether ``train()`` and ``eval()`` make a difference for a module of PyTorch."""
    if isinstance(module, Dropout):
        return bool(module.p > 0)
    if isinstance(module, torch.nn.RNNBase | torch.nn.MultiheadAttention):
        return module.dropout > 0
    is_norm = isinstance(module, Norm)
    return is_norm and bool(module.track_running_stats)


def _mode_of(
    module: torch.nn.Module, graph: WatchedGraph, toggled: ModuleChanges, read_at: Frames
) -> _Kept:
    reference = weakref.ref(module)

    def toggled_at() -> Frames:
        alive = reference()
        return (alive is not None and toggled.since(alive, graph)) or read_at

    mode = "train()" if module.training else "eval()"
    return _Kept(
        TRAIN_EVAL_TOGGLE,
        f"{type(module).__name__} was captured in `{mode}`; the replay stays in that mode",
        "",
        ("mode", reference),
        module.training,
        _of(module, attrgetter("training")),
        toggled_at,
    )


def _numbers_of(optimizer: Optimizer, read_at: Frames) -> Iterator[_Kept]:
    """The numbers of an optimizer that steps in a capture, and its parameters."""
    kind, reference = type(optimizer).__name__, weakref.ref(optimizer)
    for index, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            parts = value if type(value) is tuple else (value,)
            if any(type(part) not in (int, float, bool) for part in parts):
                continue
            is_rate = name == "lr"
            made = constructed_at(optimizer) if is_rate else ()
            place = made or read_at
            yield _Kept(
                frozen_by(optimizer) if is_rate else PYTHON_SCALAR_FROZEN,
                f"`{name}` of {kind} has changed since the capture; the replay uses the old value",
                f"`{name}`",
                (reference, index, name),
                value,
                _of(optimizer, partial(_number_of, index, name)),
                partial(tuple, place),
                filled_rate(optimizer, value)
                if is_rate
                else f"capture a graph for each value, or capture again when it has changed: {kind}"
                f" reads `{name}` on the host",
                severity=ERROR,
            )
    yield _Kept(
        PARAMETERS_ADDED_OR_REMOVED,
        f"the parameters of {kind} have changed since the capture; the replay still updates the "
        "old ones",
        "",
        (reference, "params"),
        _parameters_of(optimizer),
        _of(optimizer, _parameters_of),
        partial(tuple, read_at),
        _CAPTURE_AGAIN,
    )


def _number_of(index: int, name: str, optimizer: Optimizer) -> Hashable:
    groups = optimizer.param_groups
    value = groups[index].get(name, _GONE) if index < len(groups) else _GONE
    return _GONE if isinstance(value, torch.Tensor) else value


def _parameters_of(optimizer: Optimizer) -> Hashable:
    groups = optimizer.param_groups
    return tuple(id(parameter) for group in groups for parameter in group["params"])
