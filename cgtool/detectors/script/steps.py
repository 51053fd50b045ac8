"""Optimizers whose step is captured: the numbers of their groups are frozen."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.model.finding import ERROR
from cgtool.observe.call_sites import constructed_at
from cgtool.observe.script.state import WatchedGraph

LR_FROZEN_DESPITE_CAPTURABLE = code("lr-frozen-despite-capturable")
OPTIMIZER_WITHOUT_CAPTURE_GUARD = code("optimizer-without-capture-guard")

Numbers = dict[tuple[int, str], float]


def _numbers(optimizer: torch.optim.Optimizer) -> Numbers:
    return {
        (index, name): value
        for index, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if type(value) in (int, float, bool)
    }


class Steps(Check):
    """A learning rate that a scheduler changes, and that no replay sees."""

    def __init__(self, watch: Any, stack: ExitStack) -> None:
        super().__init__(watch)
        self._seen: dict[
            int, list[tuple[weakref.ref[torch.optim.Optimizer], Numbers, tuple[Frame, ...]]]
        ] = {}
        handle = register_optimizer_step_pre_hook(self._steps)
        stack.callback(handle.remove)

    def _steps(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        graph = self.watch.capture
        if graph is not None:
            self._seen.setdefault(graph.number, []).append(
                (weakref.ref(optimizer), _numbers(optimizer), self.watch.place())
            )

    def replaying(self, graph: WatchedGraph) -> None:
        for reference, before, stepped in self._seen.get(graph.number, ()):
            optimizer = reference()
            if optimizer is None:
                continue
            now = _numbers(optimizer)
            for key, value in before.items():
                if key in now and now[key] != value:
                    self._report(optimizer, key[1], value, now[key], stepped)
                    break

    def _report(
        self,
        optimizer: torch.optim.Optimizer,
        name: str,
        before: float,
        now: float,
        stepped: tuple[Frame, ...],
    ) -> None:
        kind = type(optimizer).__name__
        capturable = "capturable" in optimizer.param_groups[0]
        self.watch.report(
            LR_FROZEN_DESPITE_CAPTURABLE if capturable else OPTIMIZER_WITHOUT_CAPTURE_GUARD,
            f"{name} of {kind} has changed since the capture, and the replay keeps the old value",
            constructed_at(optimizer) or stepped,
            evidence=(f"{name} was {before} when captured, and is {now} now",),
            severity=ERROR,
            phase="replay",
        )
