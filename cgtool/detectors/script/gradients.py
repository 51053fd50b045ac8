"""Gradients that a graph writes, and what the script does with them between replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.script import events
from cgtool.observe.script.state import Op, WatchedGraph
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import no_torch_function, running_autograd_node
from cgtool.torch_compat.weak import Weak

ACCUMULATE_GRAD_CROSS_STREAM_GROWTH = code("accumulate-grad-cross-stream-growth")
GRAD_SET_TO_NONE_BETWEEN_REPLAYS = code("grad-set-to-none-between-replays")
GRADIENT_ACCUMULATION_MISMATCH = code("gradient-accumulation-mismatch")

_ADDITIONS = ("aten::add_.", "aten::add.")


@dataclass(eq=False)
class _Gradient:
    """The ``.grad`` of one leaf as the capture left it. Times are those of the script's clock."""

    graph: WatchedGraph
    leaf: Weak[torch.Tensor]
    key: int
    """The key of its storage."""
    adds: bool
    """The graph adds to it; else each replay overwrites it."""
    updates: bool
    """The graph changes the leaf itself: what an optimizer in it does with the gradient."""
    stepped: int = 0
    """At the last eager step of the optimizer; 0 before the first."""
    replays_at_step: int = 0
    written: int = 0
    """When the script last wrote it, or a replay that overwrites it."""
    read: int = 0
    """When the script last read it."""


class Gradients(Detector):
    """Gradients that the optimizer does not see, sees in part, or sees added up too far."""

    def start(self) -> None:
        self._gradients: list[_Gradient] = []
        self._zeroed: Frames = ()

    def on_gradients_zeroed(self, _event: events.GradientsZeroed) -> None:
        self._zeroed = self.script.place()

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        graph, self._zeroed = event.graph, ()
        with unobserved(), no_torch_function():
            for use in graph.external.values():
                leaf = use.tensor()
                if leaf is None or not leaf.requires_grad or not leaf.is_leaf or leaf.grad is None:
                    continue
                key = key_of(leaf.grad)
                if key is None:
                    continue
                outside = graph.external.get(key)
                if key in graph.allocated or (outside is not None and outside.written):
                    adds = outside is not None and not outside.first_is_write
                    self._gradients.append(_Gradient(graph, Weak(leaf), key, adds, use.written))

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        for gradient in self._gradients:
            outside = graph.external.get(gradient.key)
            if gradient.key in graph.allocated or (outside is not None and outside.first_is_write):
                gradient.written = self.script.clock + 1

    def on_eager_op(self, event: events.EagerOp) -> None:
        self._look_for_sum_with_itself(event.op)
        if not self._gradients:
            return
        written = set(map(key_of, event.op.written))
        touched = set(map(key_of, event.op.tensors))
        for gradient in self._gradients:
            if gradient.key in written:
                gradient.written = self.script.clock + 1
            elif gradient.key in touched:
                gradient.read = self.script.clock + 1

    def _look_for_sum_with_itself(self, op: Op) -> None:
        """A gradient that autograd adds to ``.grad``, which is the same memory.

        ``AccumulateGrad`` takes a gradient that nothing else refers to for ``.grad`` itself, and
        outputs of a graph, detached, are such. The next replay overwrites it.
        """
        if not op.name.startswith(_ADDITIONS) or len(op.tensors) != 2:
            return
        grad, gradient = op.tensors
        graph = self.script.buffers.allocator_of(gradient)
        if (
            graph is None
            or graph.last_replay is None
            or grad.data_ptr() != gradient.data_ptr()
            or _name(running_autograd_node()) != "torch::autograd::AccumulateGrad"
        ):
            return
        by_callable = "the graphed callable" if graph.callable is not None else graph.name
        self.report(
            GRADIENT_ACCUMULATION_MISMATCH,
            f"`.grad` shares memory with the gradient that {by_callable} returns: this backward "
            "overwrites it and then adds it to itself",
            graph.last_replay.frames,
            phase="replay",
            graphs=(graph,) if graph.callable is None else (),
        )

    def on_optimizer_steps(self, event: events.OptimizerSteps) -> None:
        if self.script.capture is not None:
            return
        groups = event.optimizer.param_groups
        leaves = {id(parameter) for group in groups for parameter in group["params"]}
        for gradient in self._gradients:
            leaf = gradient.leaf()
            # The step is meant to skip what is frozen by now.
            if leaf is not None and leaf.requires_grad and id(leaf) in leaves:
                self._look_at_gradient(gradient, leaf)
                gradient.stepped = self.script.clock + 1
                gradient.replays_at_step = gradient.graph.replays

    def _look_at_gradient(self, gradient: _Gradient, leaf: torch.Tensor) -> None:
        graph = gradient.graph
        replays = graph.replays - gradient.replays_at_step
        if not graph.replayable or not replays or graph.last_replay is None:
            return
        with no_torch_function():
            grad = leaf.grad
        if grad is None:
            self.report(
                GRAD_SET_TO_NONE_BETWEEN_REPLAYS,
                "the gradient that the graph writes is no longer the `.grad` of its parameter; "
                "`optimizer.step()` skips the parameter",
                self._zeroed or graph.last_replay.frames,
            )
            graph.replaced.add(gradient.key)
        elif key_of(grad) != gradient.key:
            # What the script makes of the gradients of this replay is as good.
            if gradient.read < graph.last_replay.time and not gradient.updates:
                self._report_replaced(graph)
                graph.replaced.add(gradient.key)
        elif not gradient.adds and replays > 1 and gradient.read <= gradient.stepped:
            self._look_at_overwritten(gradient, replays)
        elif gradient.adds and gradient.stepped and gradient.written <= gradient.stepped:
            self.report(
                GRADIENT_ACCUMULATION_MISMATCH,
                "each replay adds to `.grad`, and nothing sets it to zero between two steps of the "
                "optimizer",
                graph.last_replay.frames,
                fix=(
                    "set it to zero in place, `optimizer.zero_grad(set_to_none=False)`, once per "
                    "step"
                ),
                phase="replay",
            )

    def _report_replaced(self, graph: WatchedGraph) -> None:
        self.report(
            GRAD_SET_TO_NONE_BETWEEN_REPLAYS,
            "`.grad` is another tensor than the one that the graph writes; `optimizer.step()` does "
            "not see the gradients of this replay",
            self._zeroed or self.script.place(),
            fix="change gradients in place: `p.grad.div_(n)`, `p.grad.copy_(other)`",
        )

    def _look_at_overwritten(self, gradient: _Gradient, replays: int) -> None:
        """Several replays before a step are a mistake if each got its own batch."""
        graph = gradient.graph
        if gradient.updates:
            return
        writes = [use.buffer.last_write for use in graph.external.values()]
        if graph.last_replay is None or not any(
            write.graph is None and gradient.stepped < write.time < graph.last_replay.time
            for write in writes
            if write is not None
        ):
            return
        if gradient.stepped == 0 and graph.replays > replays:
            return
        self.report(
            GRADIENT_ACCUMULATION_MISMATCH,
            f"{replays} replays before one step of the optimizer: each overwrites `.grad`, which "
            "was None at the capture, so the step sees only the last",
            graph.last_replay.frames,
            phase="replay",
        )


def _name(node: Any) -> str | None:
    return None if node is None else node.name()


class StaleNodes(Detector):
    """Gradients that are accumulated on a stream of the warm-up, of which PyTorch 2.10 and newer
    warn."""

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        self._stale: Frames | None = None

    def on_warned(self, event: events.Warned) -> None:
        if "AccumulateGrad" in event.text and "stream does not match" in event.text:
            self._stale = self.script.place()

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        # The warm-up of make_graphed_callables leaves such nodes too: nothing there is the script's
        # to change, and its gradients are not accumulated in the graph.
        if self._stale is not None and event.graph.callable is None:
            self.report(
                ACCUMULATE_GRAD_CROSS_STREAM_GROWTH,
                "gradients are accumulated on a different stream than the capture's: "
                "autograd nodes of an earlier forward are still alive",
                self._stale,
                phase="capture",
            )
