"""Misuse of ``make_graphed_callables`` and of what it returns."""

from __future__ import annotations

import torch

from cgtool.detectors.preflight import hooks_of
from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.script import events
from cgtool.observe.script.state import GraphedCallable
from cgtool.observe.tensors import whole_or_parts
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import no_torch_function
from cgtool.torch_compat.weak import Weak

ARG_ORDER_OR_KWARGS_CHANGED = code("arg-order-or-kwargs-changed")
DOUBLE_BACKWARD = code("double-backward")
GRAPHED_CALLABLE_CALLED_TWICE = code("graphed-callable-called-twice")
GRAPHED_MODULE_MUTATED_IN_PLACE = code("graphed-module-mutated-in-place")
INPUT_LAYOUT_OR_GRAD_FLAG_CHANGED = code("input-layout-or-grad-flag-changed")
NO_DIFFERENTIABLE_PARAMS = code("no-differentiable-params")
PARAMETERS_ADDED_OR_REMOVED = code("parameters-added-or-removed")
SILENT_EAGER_FALLBACK = code("silent-eager-fallback")
STATIC_BUFFERS_DUPLICATED = code("static-buffers-duplicated")
WARMUP_MUTATES_STATE = code("warmup-mutates-state")

_LARGE_BYTES = 16 << 20


class Callables(Detector):
    """Misuse when callables are graphed, and when they are called."""

    def start(self) -> None:
        self._copies: list[tuple[Weak[torch.Tensor], torch.Tensor]] = []
        """Buffers of the modules that are being graphed, with a copy from before the warm-up."""
        self._changed: list[tuple[Frames, list[Weak[torch.Tensor]]]] = []
        """Buffers that a warm-up has changed, with the line of ``make_graphed_callables``."""
        self._last_call: dict[GraphedCallable, Frames] = {}
        self._fell_back: dict[GraphedCallable, Frames] = {}
        """Where a callable first ran eagerly."""
        self._differentiated: set[Frames] = set()
        """Where the backward of a callable ran with ``create_graph=True``."""

    def on_callables_graphing(self, event: events.CallablesGraphing) -> None:
        self._copies.clear()
        for target, graphed in zip(event.targets, event.callables, strict=False):
            if isinstance(target, torch.nn.Module):
                self._look_at_module(target, graphed)
                with unobserved():
                    self._copies += [
                        (Weak(part), part.detach().clone())
                        for buffer in target.buffers()
                        for _, part in whole_or_parts(buffer)
                    ]

    def _look_at_module(self, module: torch.nn.Module, graphed: GraphedCallable) -> None:
        if graphed.again:
            self.report(
                GRAPHED_MODULE_MUTATED_IN_PLACE,
                "the module is already graphed: make_graphed_callables has replaced its forward",
            )
        for name, child in module.named_modules():
            for finding in hooks_of(name, child) if child is not module else ():
                self.report(finding.code, finding.reason, module=name)

    def on_callables_graphed(self, event: events.CallablesGraphed) -> None:
        changed = [
            reference
            for reference, before in self._copies
            if (buffer := reference()) is not None and not _equal(buffer, before)
        ]
        self._copies.clear()
        self._changed.append((self.script.place(), changed))
        if event.captures == len(event.callables):
            self.report(
                NO_DIFFERENTIABLE_PARAMS,
                "no output requires grad: there is no backward to capture, and "
                "make_graphed_callables does nothing that torch.cuda.graph does not",
            )
        # Each callable after the first copies the output of the one before into a buffer.
        total = sum(
            tensor.nbytes
            for graphed in event.callables[1:]
            for reference in graphed.samples
            if (tensor := reference()) is not None
        )
        if total >= _LARGE_BYTES:
            self.report(
                STATIC_BUFFERS_DUPLICATED,
                f"{len(event.callables)} callables keep {total >> 20} MiB of static inputs that "
                "are copies of each other's outputs",
            )

    def on_graphed_call(self, event: events.GraphedCall) -> None:
        self._last_call[event.callable] = self.script.place()
        with no_torch_function():
            self._look_at_arguments(event)
        self._look_at_parameters(event)
        self._look_at_warm_up_state()

    def _look_at_arguments(self, event: events.GraphedCall) -> None:
        samples = [reference() for reference in event.callable.samples]
        for index, (argument, sample) in enumerate(zip(event.arguments, samples, strict=False)):
            if sample is None:
                continue
            if argument.requires_grad and not sample.requires_grad:
                self.report(
                    INPUT_LAYOUT_OR_GRAD_FLAG_CHANGED,
                    f"argument {index} requires grad and its sample does not: it gets no gradient",
                )
            elif argument.dtype != sample.dtype:
                is_cut = argument.is_floating_point() and not torch.can_cast(
                    argument.dtype, sample.dtype
                )
                self.report(
                    INPUT_LAYOUT_OR_GRAD_FLAG_CHANGED,
                    f"argument {index} is {argument.dtype} and its sample is {sample.dtype}: the "
                    "copy into the sample converts the values"
                    + (", and drops their fractions" if is_cut else ""),
                    fix=f"create the sample with `dtype={argument.dtype}`, that of the real input, "
                    "or graph the callable once for each dtype",
                )
            elif argument.shape == sample.shape and argument.stride() != sample.stride():
                self.report(
                    INPUT_LAYOUT_OR_GRAD_FLAG_CHANGED,
                    f"argument {index} has the strides {argument.stride()} and its sample "
                    f"{sample.stride()}",
                )
            for other_index, other in enumerate(samples):
                if other is None or other_index == index:
                    continue
                if other.data_ptr() == argument.data_ptr() != sample.data_ptr():
                    self.report(
                        ARG_ORDER_OR_KWARGS_CHANGED,
                        f"argument {index} is the sample of argument {other_index}",
                    )

    def _look_at_parameters(self, event: events.GraphedCall) -> None:
        graphed = event.callable
        module = graphed.module()
        if module is None:
            return
        now = {id(own): own.requires_grad for own in module.parameters()}
        called = event.called
        if now != graphed.trainable:
            difference = (
                "parameters whose `requires_grad` has changed since the capture"
                if now.keys() == graphed.trainable.keys()
                else "different parameters than at the capture"
            )
            self.report(
                PARAMETERS_ADDED_OR_REMOVED,
                f"{type(module).__name__} has {difference}; the graph uses those of the capture",
            )
        elif called is not None and all(part is not module for part in called.modules()):
            self.report(
                GRAPHED_MODULE_MUTATED_IN_PLACE,
                "this is a copy of a graphed module, and calls the graph of the original",
            )

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        self._look_at_warm_up_state()
        places = {each.frames for each in self.findings if each.code == DOUBLE_BACKWARD}
        if places > self._differentiated:
            # PyTorch has refused the second derivative, at its own line.
            for frames in self._differentiated:
                self.findings.drop(DOUBLE_BACKWARD, frames)
        for graphed, frames in self._fell_back.items():
            if graphed not in self._last_call:
                mode = "train()" if graphed.training else "eval()"
                self.report(
                    SILENT_EAGER_FALLBACK,
                    f"the module was graphed in `{mode}` and is called in the other mode: every "
                    "call runs eagerly",
                    frames,
                )

    def _look_at_warm_up_state(self) -> None:
        """By the first call, what a warm-up has changed is either restored or stays changed."""
        for frames, references in self._changed:
            stale = [
                buffer
                for reference in references
                if (buffer := reference()) is not None and not self._is_rewritten(buffer)
            ]
            if stale:
                self.report(
                    WARMUP_MUTATES_STATE,
                    f"the warm-up of make_graphed_callables has changed {len(stale)} buffers of "
                    "the module",
                    frames,
                )
        self._changed.clear()

    def _is_rewritten(self, tensor: torch.Tensor) -> bool:
        buffer = self.script.buffers.find(tensor)
        write = buffer.last_write if buffer is not None else None
        return write is not None and write.graph is None

    def on_graphed_call_fell_back(self, event: events.GraphedCallFellBack) -> None:
        self._fell_back.setdefault(event.callable, self.script.place())

    def on_graphed_backward_keeps_graph(self, _event: events.GraphedBackwardKeepsGraph) -> None:
        place = self.script.place()
        self._differentiated.add(place)
        self.report(
            DOUBLE_BACKWARD,
            "the backward of a graphed callable is a replay: `create_graph=True` gives gradients "
            "that cannot be differentiated, and a loss of them has no effect",
            place,
        )

    def on_graphed_backward_too_late(self, event: events.GraphedBackwardTooLate) -> None:
        self.report(
            GRAPHED_CALLABLE_CALLED_TWICE,
            "the callable is called again before the backward of the previous call: the "
            "second call overwrites the outputs of that one, and what its backward needs",
            self._last_call.get(event.callable),
        )


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    with unobserved(), no_torch_function():
        return tensor.shape == other.shape and bool(torch.equal(tensor, other))
