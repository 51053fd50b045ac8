"""What ``make_graphed_callables`` returned, and how the script calls it.

Each call runs PyTorch's own ``Graphed.forward``; what it was given lies in the locals of that
frame, whose names are the same from PyTorch 2.8 on (torch/cuda/graphs.py).
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.storage import storage_of, tensors_in
from cgtool.torch_compat.private import (
    CALL_MODULE,
    FORWARD_HOOKS,
    no_dispatch,
    no_torch_function,
    storage_key,
)

ARG_ORDER_OR_KWARGS_CHANGED = code("arg-order-or-kwargs-changed")
CHILD_MODULE_HOOKS_CAPTURED = code("child-module-hooks-captured")
GRAPHED_CALLABLE_CALLED_TWICE = code("graphed-callable-called-twice")
GRAPHED_MODULE_MUTATED_IN_PLACE = code("graphed-module-mutated-in-place")
INPUT_LAYOUT_OR_GRAD_FLAG_CHANGED = code("input-layout-or-grad-flag-changed")
NO_DIFFERENTIABLE_PARAMS = code("no-differentiable-params")
PARAMETERS_ADDED_OR_REMOVED = code("parameters-added-or-removed")
SILENT_EAGER_FALLBACK = code("silent-eager-fallback")
STATIC_BUFFERS_DUPLICATED = code("static-buffers-duplicated")
WARMUP_MUTATES_STATE = code("warmup-mutates-state")

_GRAPHS = "/torch/cuda/graphs.py"
_LARGE = 16 << 20


@dataclass(eq=False)
class Part:
    """One callable."""

    static: frozenset[int]
    """Storages of its sample arguments."""
    module: weakref.ref[torch.nn.Module] | None
    training: bool
    trainable: dict[int, bool]
    """``requires_grad`` of each parameter, by identity."""
    latest: int = 0
    """Identity of the autograd node of the last call."""
    place: tuple[Frame, ...] = ()
    """Of the last call."""
    calls: int = 0
    fallback: tuple[Frame, ...] = ()
    """A call in another mode than the captured one, which runs eagerly."""
    twice: bool = False
    """It was called again before its backward."""

    def is_static(self, key: int) -> bool:
        return key in self.static


@dataclass
class _Made:
    """One call of ``make_graphed_callables``."""

    parts: list[Part]
    place: tuple[Frame, ...]
    captures: int = 0
    buffers: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = field(default_factory=list)
    """Of the modules, with a copy from before the warm-up."""
    changed: list[weakref.ref[torch.Tensor]] = field(default_factory=list)


def _locals_above(name: str) -> dict[str, Any] | None:
    """Locals of the nearest function of torch/cuda/graphs.py with this name."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == name and frame.f_code.co_filename.endswith(_GRAPHS):
            return dict(frame.f_locals)
        frame = frame.f_back
    return None


def _called_module() -> torch.nn.Module | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == CALL_MODULE:
            owner = frame.f_locals.get("self")
            return owner if isinstance(owner, torch.nn.Module) else None
        frame = frame.f_back
    return None


class Callables(Check):
    """Misuse of graphed callables."""

    def __init__(self, watch: Any, stack: ExitStack) -> None:
        super().__init__(watch)
        self._making: _Made | None = None
        self._made: list[_Made] = []
        self._nodes: dict[int, Part] = {}
        """Autograd nodes of calls whose backward has not run, to their callable."""
        handle = register_module_forward_pre_hook(self._runs)
        stack.callback(handle.remove)
        make = torch.cuda.make_graphed_callables

        @functools.wraps(make)
        def make_graphed_callables(callables: Any, sample_args: Any, *args: Any, **kw: Any) -> Any:
            return self._make(make, callables, sample_args, args, kw)

        for owner in (torch.cuda, torch.cuda.graphs):
            before = owner.make_graphed_callables
            owner.make_graphed_callables = make_graphed_callables  # type: ignore[attr-defined]
            stack.callback(setattr, owner, "make_graphed_callables", before)

    # At the capture.

    def _make(self, make: Any, callables: Any, samples: Any, args: Any, kwargs: Any) -> Any:
        place = self.watch.place()
        several = isinstance(callables, tuple)
        targets = callables if several else (callables,)
        given = samples if several else (samples,)
        made = _Made([], place)
        for target, one in zip(targets, given, strict=False):
            made.parts.append(_part(target, one))
            if isinstance(target, torch.nn.Module):
                self._look_at_module(target, place)
                with no_dispatch():
                    made.buffers += [(weakref.ref(b), b.detach().clone()) for b in target.buffers()]
        self._making = made
        try:
            result = make(callables, samples, *args, **kwargs)
        finally:
            self._making = None
        self._made.append(made)
        for reference, before in made.buffers:
            buffer = reference()
            if buffer is not None and not _equal(buffer, before):
                made.changed.append(reference)
        made.buffers.clear()
        if made.captures == len(made.parts):
            self.watch.report(
                NO_DIFFERENTIABLE_PARAMS,
                "no output requires grad: there is no backward to capture, and "
                "make_graphed_callables gives nothing that torch.cuda.graph does not",
                place,
                phase="script",
            )
        if several:
            self._duplicated(given, place)
        return result

    def _look_at_module(self, module: torch.nn.Module, place: tuple[Frame, ...]) -> None:
        forward = module.__dict__.get("forward")
        if getattr(forward, "__name__", "") == "new_fwd":
            self.watch.report(
                GRAPHED_MODULE_MUTATED_IN_PLACE,
                "the module is graphed already: make_graphed_callables has replaced its forward",
                place,
                phase="script",
            )
        for name, child in module.named_modules():
            if child is not module and any(getattr(child, hooks) for hooks in FORWARD_HOOKS):
                self.watch.report(
                    CHILD_MODULE_HOOKS_CAPTURED,
                    f"{name} ({type(child).__name__}) has a hook, whose Python does not run in a "
                    "replay",
                    place,
                    module=name,
                    phase="script",
                )

    def _duplicated(self, samples: Any, place: tuple[Frame, ...]) -> None:
        """Each callable after the first copies the output of the one before into a buffer."""
        sizes = [
            sum(one.numel() * one.element_size() for one in tensors_in(list(args)))
            for args in samples[1:]
        ]
        if sum(sizes) >= _LARGE:
            self.watch.report(
                STATIC_BUFFERS_DUPLICATED,
                f"{len(samples)} callables keep {sum(sizes) >> 20} MiB of static inputs that are "
                "copies of each other's outputs",
                place,
                phase="script",
            )

    def begun(self, graph: WatchedGraph) -> None:
        made = self._making
        if made is not None:
            # All forwards are captured before the first backward.
            if made.captures < len(made.parts):
                graph.part = made.parts[made.captures]
            else:
                graph.part = Part(frozenset(), None, True, {})
            made.captures += 1

    # At a call.

    def replaying(self, graph: WatchedGraph) -> None:
        part: Part | None = graph.part
        if part is None:
            return
        forward = _locals_above("forward")
        if forward is not None and "fwd_graph" in forward:
            self._forward(part, forward)
        backward = _locals_above("backward")
        if backward is not None and "bwd_graph" in backward:
            self._backward(id(backward.get("ctx")))

    def _forward(self, part: Part, found: dict[str, Any]) -> None:
        place = self.watch.place()
        part.calls += 1
        part.latest = id(found.get("ctx"))
        part.place = place
        surface = found.get("static_input_surface", ())
        inputs = found.get("inputs", ())
        count = found.get("len_user_args", 0)
        self._nodes[part.latest] = part
        with no_torch_function():
            self._inputs(inputs[:count], surface[:count], place)
        self._parameters(part, inputs[count:], place)
        self._state()

    def _inputs(self, given: Any, static: Any, place: tuple[Frame, ...]) -> None:
        for index, (one, sample) in enumerate(zip(given, static, strict=False)):
            if one.requires_grad and not sample.requires_grad:
                self.watch.report(
                    INPUT_LAYOUT_OR_GRAD_FLAG_CHANGED,
                    f"argument {index} requires grad and its sample did not: it gets no gradient",
                    place,
                    phase="script",
                )
            elif one.dtype != sample.dtype or (
                one.shape == sample.shape and one.stride() != sample.stride()
            ):
                self.watch.report(
                    INPUT_LAYOUT_OR_GRAD_FLAG_CHANGED,
                    f"argument {index} is {one.dtype} with strides {one.stride()}; its sample was "
                    f"{sample.dtype} with {sample.stride()}",
                    place,
                    phase="script",
                )
            for other, own in enumerate(static):
                swapped = other != index and own.data_ptr() == one.data_ptr()
                if swapped and sample.data_ptr() != one.data_ptr():
                    self.watch.report(
                        ARG_ORDER_OR_KWARGS_CHANGED,
                        f"argument {index} is the sample of argument {other}",
                        place,
                        phase="script",
                    )

    def _parameters(self, part: Part, captured: Any, place: tuple[Frame, ...]) -> None:
        module = part.module() if part.module is not None else None
        if module is None:
            return
        now = list(module.parameters())
        if {id(one) for one in now} != {id(one) for one in captured}:
            what = "has other parameters than at the capture"
        elif any(
            part.trainable.get(id(one), one.requires_grad) != one.requires_grad for one in now
        ):
            what = "has parameters whose requires_grad is another than at the capture"
        else:
            called = _called_module()
            if called is not None and called is not module and not _contains(called, module):
                self.watch.report(
                    GRAPHED_MODULE_MUTATED_IN_PLACE,
                    "this is a copy of a graphed module, and calls the graph of the original",
                    place,
                    phase="script",
                )
            return
        self.watch.report(
            PARAMETERS_ADDED_OR_REMOVED,
            f"{type(module).__name__} {what}: the graph knows those of the capture",
            place,
            phase="script",
        )

    def _state(self) -> None:
        """The first call: what the warm-up changed is either restored by now, or is not."""
        for made in self._made:
            stale = [
                one
                for one in made.changed
                if (buffer := one()) is not None and not self._rewritten(buffer)
            ]
            made.changed.clear()
            if stale:
                self.watch.report(
                    WARMUP_MUTATES_STATE,
                    f"the warm-up of make_graphed_callables has changed {len(stale)} buffers of "
                    "the module",
                    made.place,
                    phase="script",
                )

    def _rewritten(self, buffer: torch.Tensor) -> bool:
        cell = self.watch.cells.find(buffer)
        return cell is not None and cell.write is not None and cell.write.graph is None

    def _backward(self, node: int) -> None:
        part = self._nodes.pop(node, None)
        if part is not None and part.latest != node:
            part.twice = True
            self.watch.report(
                GRAPHED_CALLABLE_CALLED_TWICE,
                "the callable is called again before the backward of the call before: the second "
                "call overwrites what that backward needs",
                part.place,
                phase="script",
            )

    def _runs(self, module: torch.nn.Module, _args: Any) -> None:
        if self._making is not None or self.watch.closed:
            return
        for made in self._made:
            for part in made.parts:
                own = part.module is not None and part.module() is module
                if own and module.training != part.training and not part.fallback:
                    part.fallback = self.watch.place()

    def finish(self) -> None:
        self._state()
        for made in self._made:
            for part in made.parts:
                if part.fallback and not part.calls:
                    mode = "train()" if part.training else "eval()"
                    self.watch.report(
                        SILENT_EAGER_FALLBACK,
                        f"the module was graphed in {mode} and is called in the other mode: every "
                        "call runs eagerly",
                        part.fallback,
                        phase="script",
                    )


def _part(target: Any, samples: Any) -> Part:
    keys = frozenset(
        storage_key(storage)
        for one in tensors_in(list(samples) if isinstance(samples, list | tuple) else samples)
        if (storage := storage_of(one)) is not None
    )
    if isinstance(target, torch.nn.Module):
        flags = {id(one): one.requires_grad for one in target.parameters()}
        return Part(keys, weakref.ref(target), target.training, flags)
    return Part(keys, None, True, {})


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    with no_dispatch(), no_torch_function():
        return one.shape == other.shape and bool(torch.equal(one, other))


def _contains(outer: torch.nn.Module, inner: torch.nn.Module) -> bool:
    return any(one is inner for one in outer.modules())
