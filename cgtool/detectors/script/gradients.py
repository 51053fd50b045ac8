"""Gradients that a graph writes, and what the script does with them between replays."""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.observe.effects import written_by
from cgtool.observe.frames import package_part
from cgtool.observe.script.state import Op, WatchedGraph
from cgtool.observe.storage import storage_of, tensors_in
from cgtool.torch_compat.private import no_dispatch, no_torch_function, storage_key

ACCUMULATE_GRAD_CROSS_STREAM_GROWTH = code("accumulate-grad-cross-stream-growth")
GRAD_SET_TO_NONE_BETWEEN_REPLAYS = code("grad-set-to-none-between-replays")
GRADIENT_ACCUMULATION_MISMATCH = code("gradient-accumulation-mismatch")


@dataclass(eq=False)
class _Gradient:
    """The ``.grad`` of one leaf as the capture left it."""

    graph: WatchedGraph
    leaf: weakref.ref[torch.Tensor]
    key: int
    adds: bool
    """The graph adds to it; else each replay overwrites it."""
    stepped: int = 0
    """The watcher's count of events at the last eager step; 0 before the first."""
    replays: int = 0
    """Of the graph, at that step."""
    written: int = 0
    """When the script last wrote it itself."""
    looked: int = 0
    """When the script last read it."""


class Gradients(Check):
    """``grad-set-to-none-between-replays`` and ``gradient-accumulation-mismatch``."""

    def __init__(self, watch: Any, stack: ExitStack) -> None:
        super().__init__(watch)
        self._gradients: list[_Gradient] = []
        self._zeroed: tuple[Frame, ...] = ()
        handle = register_optimizer_step_pre_hook(self._steps)
        stack.callback(handle.remove)
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            before = owner.zero_grad

            @functools.wraps(before)
            def zero_grad(self_: Any, *args: Any, _before: Any = before, **kwargs: Any) -> Any:
                if self.watch.capture is None:
                    self._zeroed = self.watch.place()
                return _before(self_, *args, **kwargs)

            setattr(owner, "zero_grad", zero_grad)  # noqa: B010
            stack.callback(setattr, owner, "zero_grad", before)

    def ended(self, graph: WatchedGraph) -> None:
        with no_dispatch(), no_torch_function():
            for read in graph.reads.values():
                leaf = read.tensor()
                if leaf is None or not leaf.requires_grad or not leaf.is_leaf or leaf.grad is None:
                    continue
                storage = storage_of(leaf.grad)
                key = None if storage is None else storage_key(storage)
                if key in graph.made:
                    self._gradients.append(_Gradient(graph, weakref.ref(leaf), key, False))
                elif key in graph.reads and graph.reads[key].written:
                    adds = not graph.reads[key].first_is_write
                    self._gradients.append(_Gradient(graph, weakref.ref(leaf), key, adds))

    def eager(self, op: Op) -> None:
        if not self._gradients:
            return
        written = {
            storage_key(storage)
            for one in written_by(op.func, op.args, op.kwargs)
            if (storage := storage_of(one)) is not None
        }
        touched = {
            storage_key(storage)
            for one in tensors_in((op.args, op.kwargs))
            if (storage := storage_of(one)) is not None
        }
        for one in self._gradients:
            if one.key in written:
                one.written = self.watch.now + 1
            elif one.key in touched:
                one.looked = self.watch.now + 1

    def _steps(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.watch.capture is not None or self.watch.closed:
            return
        leaves = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for one in self._gradients:
            leaf = one.leaf()
            if leaf is not None and id(leaf) in leaves:
                self._step(one, leaf)

    def _step(self, one: _Gradient, leaf: torch.Tensor) -> None:
        graph = one.graph
        replays = graph.replays - one.replays
        if graph.live() and replays and graph.last is not None:
            with no_torch_function():
                dropped = leaf.grad is None
            if dropped:
                self.watch.report(
                    GRAD_SET_TO_NONE_BETWEEN_REPLAYS,
                    "the gradient that the graph writes is no parameter's .grad any more: "
                    "optimizer.step() skips it",
                    self._zeroed or graph.last.frames,
                    phase="script",
                )
            elif not one.adds and replays > 1 and one.looked <= one.stepped:
                self._overwritten(one, replays)
            elif one.adds and one.stepped and one.written <= one.stepped:
                self.watch.report(
                    GRADIENT_ACCUMULATION_MISMATCH,
                    "each replay adds to .grad, and nothing sets it to zero between two steps of "
                    "the optimizer",
                    graph.last.frames,
                    fix="zero it in place, optimizer.zero_grad(set_to_none=False), once for each "
                    "step",
                    phase="replay",
                )
        one.stepped, one.replays = self.watch.now + 1, graph.replays

    def _overwritten(self, one: _Gradient, replays: int) -> None:
        """Several replays before a step are a mistake if each was given its own batch."""
        graph = one.graph
        fed = [
            read.cell.write
            for read in graph.reads.values()
            if read.cell.write is not None and read.cell.write.graph is None
        ]
        if graph.last is None or not any(one.stepped < write.at < graph.last.at for write in fed):
            return
        if one.stepped == 0 and graph.replays > replays:
            return
        self.watch.report(
            GRADIENT_ACCUMULATION_MISMATCH,
            f"{replays} replays before one step of the optimizer: each overwrites .grad, which was "
            "None at the capture, so that the step sees the last one alone",
            graph.last.frames,
            phase="replay",
        )


class StaleNodes(Check):
    """``accumulate-grad-cross-stream-growth``: gradients are added on a stream of the warm-up's.

    PyTorch warns (2.10 on); before, the stream on which the node runs tells.
    """

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._streams: set[int] = set()
        """On which the captured forward has run: nodes of its own belong to these."""
        self._stale: tuple[Frame, ...] | None = None

    def begun(self, graph: WatchedGraph) -> None:
        self._streams, self._stale = {graph.stream}, None

    def warned(self, text: str) -> None:
        if "AccumulateGrad" in text and "stream does not match" in text:
            self._stale = self.watch.place()

    def captured(self, graph: WatchedGraph, op: Op, fresh: list[int]) -> None:
        if self.watch.machine.simulated or op.call is None:
            # Autograd runs there on one stream, whichever the forward ran on.
            return
        node, stream = op.call.autograd_node, self.watch.machine.stream()
        if node is None:
            self._streams.add(stream)
        elif "AccumulateGrad" in node and stream not in self._streams:
            self._stale = self.watch.place()

    def ended(self, graph: WatchedGraph) -> None:
        if self._stale is not None and not _by_pytorch():
            self.watch.report(
                ACCUMULATE_GRAD_CROSS_STREAM_GROWTH,
                "gradients are added on another stream than the capture's: the autograd nodes of "
                "an earlier forward are still alive",
                self._stale,
                phase="capture",
            )


def _by_pytorch() -> bool:
    """True inside ``make_graphed_callables``, whose own warm-up leaves such nodes: nothing there
    is the script's to change, and its gradients are not accumulated in the graph."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "make_graphed_callables" and package_part(code.co_filename):
            return True
        frame = frame.f_back
    return False
