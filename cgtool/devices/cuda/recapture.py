"""Capture a workload again, with nothing watched, at another place in memory.

What is captured after others were dropped takes other times than the first capture of a process
(``cgtool.analysis.timing.regression`` has the figures), so it is compared only with what was
captured right before or behind it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from cgtool.detectors.errors import explain
from cgtool.model.options import CaptureOptions
from cgtool.program.boundary import user_errors
from cgtool.program.phases import Phases, name_of, through
from cgtool.program.workload import Part, Workload

Once = Callable[[], None]

_PADS = 3
_PAD_BYTES = 2 << 20
"""The driver's unit of device memory (cuMemGetAllocationGranularity of GPUs since Pascal)."""
_LONGEST_PAD = 32


@dataclass
class Graphs:
    """Graphs that replay, and the tensors that they replay on."""

    phases: Phases
    made: list[tuple[str, Any]] = field(default_factory=list)
    """(phase, graph) in order of capture."""
    results: list[Any] = field(default_factory=list)


def recapture(workload: Workload, options: CaptureOptions, stream: Any) -> Graphs:
    """Capture a workload that is warm. Raises CgtoolError for what its code raises."""
    graphs = Graphs(Phases(workload, options))
    shared = torch.cuda.graph_pool_handle()

    def run(part: Part, phase: str, index: int, body: Callable[[], Any]) -> Any:
        pool = torch.cuda.graph_pool_handle() if options.pool == "separate" else shared
        graph = torch.cuda.CUDAGraph()
        with (
            user_errors(part, f"capture {name_of(graphs.phases, phase, index)}", explain),
            torch.cuda.graph(
                graph,
                pool=cast(Any, pool),
                stream=stream,
                capture_error_mode=options.capture_error_mode,
            ),
        ):
            result = body()
        graphs.made.append((phase, graph))
        graphs.results.append(result)
        return result

    through(graphs.phases, run)
    return graphs


def replays(kind: str, made: Sequence[tuple[str, Any]]) -> dict[str, tuple[Once, Once | None]]:
    """By phase: one replay of it, and what has to run right before each."""

    def of(phase: str) -> Once:
        return _in_a_row([graph.replay for one, graph in made if one == phase])

    if kind == "step":
        return {"step": (of("step"), None)}
    found: dict[str, tuple[Once, Once | None]] = {"forward": (of("forward"), None)}
    if any(phase == "backward" for phase, _ in made):
        found["backward"] = (of("backward"), of("forward"))
        found["both"] = (_in_a_row([graph.replay for _, graph in made]), None)
    return found


def _in_a_row(calls: Sequence[Once]) -> Once:
    if len(calls) == 1:
        return calls[0]

    def all_of_them() -> None:
        for one in calls:
            one()

    return all_of_them


class Pads:
    """Memory that is held so that what is allocated next lies elsewhere."""

    def __init__(self, device: int, seed: int = 0) -> None:
        self._device = device
        self._draw = random.Random(seed)
        self._held: list[torch.Tensor] = []

    def move(self) -> None:
        """Other sizes, in memory that goes back to the driver first; none where it is full."""
        self._held.clear()
        torch.cuda.empty_cache()
        try:
            for _ in range(_PADS):
                size = self._draw.randint(1, _LONGEST_PAD) * _PAD_BYTES
                self._held.append(torch.empty(size, dtype=torch.uint8, device=self._device))
        except torch.OutOfMemoryError:
            self._held.clear()
