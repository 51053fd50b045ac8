"""Captures that hold nothing, or that run where they should not."""

from __future__ import annotations

import functools
import os
import threading
from contextlib import ExitStack
from typing import Any

import torch

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.observe.script.state import Op, WatchedGraph
from cgtool.observe.storage import storage_of, tensors_in
from cgtool.torch_compat.private import pins_memory, storage_key

AUTOCAST_WEIGHT_CACHE = code("autocast-weight-cache")
CACHING_ALLOCATOR_DISABLED = code("caching-allocator-disabled")
DATALOADER_PIN_THREAD = code("dataloader-pin-thread")
EMPTY_GRAPH = code("empty-graph")
FINALIZER_IN_CAPTURE = code("finalizer-in-capture")
MODIFIED_TEMPLATE_NOT_REINSTANTIATED = code("modified-template-not-reinstantiated")
RELAXED_MODE_HIDES_BUGS = code("relaxed-mode-hides-bugs")
RNG_SEQUENCE_DIFFERS_FROM_EAGER = code("rng-sequence-differs-from-eager")


class Misuse(Check):
    """What ``capture_begin`` and ``capture_end`` can tell."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._empty: WatchedGraph | None = None

    def warned(self, text: str) -> None:
        if "CUDA Graph is empty" in text:
            self._empty = self.watch.capture

    def begun(self, graph: WatchedGraph) -> None:
        setting = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")
        if setting:
            self.watch.report(
                CACHING_ALLOCATOR_DISABLED,
                "PYTORCH_NO_CUDA_MEMORY_CACHING is set: every allocation of the capture would be a "
                "cudaMalloc, which CUDA does not permit there",
                graph.frames,
                evidence=(f"PYTORCH_NO_CUDA_MEMORY_CACHING={setting}",),
                phase="capture",
            )
        if graph.mode == "global" and _pinning():
            self.watch.report(
                DATALOADER_PIN_THREAD,
                "a DataLoader with pin_memory=True has a thread that calls CUDA, which may end "
                "this capture at any time",
                graph.frames,
                phase="capture",
            )

    def ended(self, graph: WatchedGraph) -> None:
        if graph.mode == "relaxed":
            self.watch.report(
                RELAXED_MODE_HIDES_BUGS,
                'capture_error_mode="relaxed": calls that a capture does not permit run unnoticed',
                graph.frames,
                phase="capture",
            )
        if graph is not self._empty:
            return
        if graph.ops:
            self.watch.report(
                EMPTY_GRAPH,
                "the graph is empty: no op of the capture ran on its device and streams",
                graph.frames,
                phase="capture",
            )
        else:
            self.watch.report(
                EMPTY_GRAPH,
                "the graph is empty: the capture ran no op",
                graph.frames,
                phase="capture",
                severity="warning",
            )


def _pinning() -> bool:
    return any(map(pins_memory, threading.enumerate()))


class Autocast(Check):
    """``autocast-weight-cache``: a graph that reads a cast of a weight from before the capture."""

    def __init__(self, watch: Any, stack: ExitStack) -> None:
        super().__init__(watch)
        self._entered: list[tuple[Frame, ...]] = []
        kind: Any = torch.autocast
        enter, leave = kind.__enter__, kind.__exit__

        @functools.wraps(enter)
        def entered(mode: Any) -> Any:
            self._entered.append(self.watch.place())
            return enter(mode)

        @functools.wraps(leave)
        def left(mode: Any, *exc: Any) -> Any:
            if self._entered:
                self._entered.pop()
            return leave(mode, *exc)

        kind.__enter__, kind.__exit__ = entered, left
        stack.callback(setattr, kind, "__enter__", enter)
        stack.callback(setattr, kind, "__exit__", leave)

    def captured(self, graph: WatchedGraph, op: Op, fresh: list[int]) -> None:
        if not fresh or not self._entered or not torch.is_autocast_cache_enabled():
            return
        for tensor in tensors_in((op.args, op.kwargs)):
            storage = storage_of(tensor)
            if storage is None or storage_key(storage) not in fresh:
                continue
            half = tensor.dtype in (torch.float16, torch.bfloat16)
            if half and tensor.requires_grad and not tensor.is_leaf and self._only_cache(tensor):
                graph.explained.add(storage_key(storage))
                self.watch.report(
                    AUTOCAST_WEIGHT_CACHE,
                    "the graph reads a cast weight that autocast made before the capture: it "
                    "does not follow the weight",
                    self._entered[-1],
                    phase="capture",
                    evidence=(f"{op.name} reads {list(tensor.shape)} {tensor.dtype}",),
                )

    def _only_cache(self, tensor: torch.Tensor) -> bool:
        """A cast of a leaf: what autocast keeps, and nothing else does."""
        node = tensor.grad_fn
        if node is None or "ToCopy" not in node.name():
            return False
        return any(
            one is not None and "AccumulateGrad" in one.name() for one, _ in node.next_functions
        )


class Randomness(Check):
    """``rng-sequence-differs-from-eager``: compared without the same seed on both sides."""

    def __init__(self, watch: Any, stack: ExitStack) -> None:
        super().__init__(watch)
        self._random: set[int] = set()
        self._seeds = 0
        for owner, name in (
            (torch.cuda, "manual_seed"),
            (torch.cuda, "manual_seed_all"),
            (torch, "manual_seed"),
            (torch.cuda, "set_rng_state"),
        ):
            before = getattr(owner, name)

            @functools.wraps(before)
            def seed(*args: Any, _before: Any = before, **kwargs: Any) -> Any:
                self._seeds += 1
                return _before(*args, **kwargs)

            setattr(owner, name, seed)
            stack.callback(setattr, owner, name, before)

    def captured(self, graph: WatchedGraph, op: Op, fresh: list[int]) -> None:
        if torch.Tag.nondeterministic_seeded in getattr(op.func, "tags", ()):
            self._random.add(graph.number)
            self._seeds = 0

    def eager(self, op: Op) -> None:
        if not op.name.startswith(("aten::equal", "aten::allclose", "aten::isclose")):
            return
        cells = [self.watch.cells.find(one) for one in tensors_in(op.args[:2])]
        made = [one.made_in for one in cells if one is not None and one.made_in is not None]
        if len(cells) != 2 or len(made) != 1 or made[0].number not in self._random:
            return
        if made[0].replays and self._seeds < 2:
            self.watch.report(
                RNG_SEQUENCE_DIFFERS_FROM_EAGER,
                "the output of a graph that draws random numbers is compared with eager, and the "
                "two did not start from the same seed",
                self.watch.place(),
                phase="script",
            )


class Templates(Check):
    """``modified-template-not-reinstantiated``."""

    def replaying(self, graph: WatchedGraph) -> None:
        real = graph.graph()
        if not graph.handed_out or graph.template is None or real is None:
            return
        now = self.watch.machine.template(real)
        if now is not None and now != graph.template:
            self.watch.report(
                MODIFIED_TEMPLATE_NOT_REINSTANTIATED,
                f"{graph.name} was edited after it was instantiated: the replay runs what was "
                "instantiated",
                self.watch.place(),
                phase="replay",
            )


class Finalizers(Check):
    """``finalizer-in-capture``: a graph dies while another one is captured."""

    def dropped(self, graph: WatchedGraph) -> None:
        if self.watch.capture is not None and graph is not self.watch.capture:
            self.watch.capture.disturbed = True
            self.watch.report(
                FINALIZER_IN_CAPTURE,
                f"{graph.name} is destroyed while another graph is captured",
                self.watch.place(),
                phase="capture",
            )
