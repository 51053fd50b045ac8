"""Collectives of torch.distributed beside and in a script's captures."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.observe.frames import call_user
from cgtool.observe.script.state import Op, WatchedGraph

CAPTURE_WAITS_FOR_NCCL = code("capture-waits-for-nccl")
NCCL_DESTROY_BEFORE_GRAPH = code("nccl-destroy-before-graph")

_COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "isend", "irecv",
)  # fmt: skip
_WAITS = ("wait", "synchronize")


class Collectives(Check):
    """``capture-waits-for-nccl`` and ``nccl-destroy-before-graph``.

    Which collective is outstanding is told by the order of calls: whether one has ended depends on
    the other ranks, and asking during a capture is not permitted.
    """

    def __init__(self, watch: Any, stack: ExitStack) -> None:
        super().__init__(watch)
        self._works: dict[int, weakref.ref[Any]] = {}
        """Started with async_op=True, and not waited for."""
        self._users: list[WatchedGraph] = []
        if not torch.distributed.is_available():
            return
        dist: Any = torch.distributed

        def replaced(owner: Any, name: str, value: Any) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

        for name in _COLLECTIVES:
            replaced(dist, name, self._noted(getattr(dist, name)))
        for name in _WAITS:
            replaced(dist.Work, name, self._over(getattr(dist.Work, name)))
        replaced(dist.Work, "is_completed", self._asked(dist.Work.is_completed))
        destroy = dist.destroy_process_group

        @functools.wraps(destroy)
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            if any(one.live() for one in self._users):
                self.watch.report(
                    NCCL_DESTROY_BEFORE_GRAPH,
                    "the process group goes while a graph that captured a collective can still be "
                    "replayed",
                    self.watch.place(),
                    phase="script",
                )
            return destroy(*args, **kwargs)

        replaced(dist, "destroy_process_group", destroy_process_group)

    def _noted(self, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        def call(*args: Any, **kwargs: Any) -> Any:
            work = call_user(before, *args, **kwargs)
            if isinstance(work, torch.distributed.Work) and self.watch.capture is None:
                self._works[id(work)] = weakref.ref(work)
            return work

        return call

    def _over(self, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        def call(work: Any, *args: Any, **kwargs: Any) -> Any:
            self._works.pop(id(work), None)
            return before(work, *args, **kwargs)

        return call

    def _asked(self, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        def call(work: Any) -> Any:
            ended = before(work)
            if ended:
                self._works.pop(id(work), None)
            return ended

        return call

    def waited(self, why: str, tensor: Any) -> None:
        if tensor is None and why == "torch.cuda.synchronize":
            self._works.clear()

    def begun(self, graph: WatchedGraph) -> None:
        # A work that nobody holds any more cannot be waited for: it is of no interest.
        if any(one() is not None for one in self._works.values()):
            self.watch.report(
                CAPTURE_WAITS_FOR_NCCL,
                "the capture begins while a collective is outstanding",
                graph.frames,
                phase="capture",
            )
            self._works.clear()

    def captured(self, graph: WatchedGraph, op: Op, fresh: list[int]) -> None:
        if op.name.startswith("c10d::") and graph not in self._users:
            self._users.append(graph)
