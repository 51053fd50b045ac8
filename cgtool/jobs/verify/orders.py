"""Orders of the nodes of a graph that its edges allow: whether one of them gives other results.

A replay may run nodes that no edge orders in any order, or at the same time. If one order gives
other results than that of capture, an edge is missing. Nodes run alone here, so what is found
depends on no timing.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from cgtool.analysis.stepped import at_node, node_frames, node_name
from cgtool.analysis.units import count_text, names_text
from cgtool.detectors.stream_races import STREAM_RACE_IN_CAPTURE
from cgtool.devices.stepping import StepFailedError, Stepper, an_order, moved_ahead
from cgtool.jobs.hanging_node import watched
from cgtool.jobs.verify.evidence import Key, Trial
from cgtool.jobs.verify.runner import TrialRunner, results_of
from cgtool.jobs.verify.state import state_of
from cgtool.model.capture import Capture, Node
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import Finding
from cgtool.model.options import Progress
from cgtool.observe.raw_tensors import arithmetic, copies, dense, held, unchanged, write
from cgtool.program.boundary import first_line

_BASES = 3
"""Runs in the order of capture: what differs between them is added up in any order."""
_SEED = 20
_SCALES = 0.5, 1
"""State is scaled before each run, each tensor by a factor of its own between these: what an
earlier replay has left in a buffer is then not what this one writes there, also if that is a copy
of an input. Below 1, so that probabilities stay probabilities."""
_SHOWN = 3

_SCALED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Results = Mapping[Key, torch.Tensor]


@dataclass(frozen=True)
class MissingEdge:
    """Two nodes of one graph that no edge orders, and whose order decides results."""

    graph: int
    """Index of the graph."""
    first: int
    """The node that runs first in the order of capture."""
    second: int
    results: tuple[str, ...]
    """Names of the results that are other ones if ``second`` runs first."""


class Orders:
    """Runs the graphs of a workload node by node, from one state."""

    def __init__(self, runner: TrialRunner, trial: Trial) -> None:
        self._runner = runner
        self._trial = trial
        self.failed = False
        """A node has failed, and the device cannot be used anymore."""
        self.looked_at = ""
        """What was tried, in words."""
        self._steppers: Sequence[Stepper] = ()
        with contextlib.suppress(CgtoolError):
            self._steppers = runner.target.steppers
        self.graphs = [
            graph
            for graph, stepper in enumerate(self._steppers)
            if stepper.has_branches() and not stepper.whole
        ]
        """The graphs that have other orders, and whose nodes can all be run alone."""

    def find(self, capture: Capture, count: int, progress: Progress) -> list[Finding]:
        """Try ``count`` random orders of each graph."""
        if not self.graphs:
            self.looked_at = (
                "no other order was tried: the edges allow none, or a node cannot run alone"
            )
            return []
        with watched(self._steppers, capture, progress):
            try:
                base = self._base()
            except torch.OutOfMemoryError:
                self.looked_at = (
                    "no other order was tried: the results do not fit into memory twice"
                )
                return []
            except StepFailedError as error:
                self.failed = True
                self.looked_at = f"no other order was tried: with its state scaled, {error}"
                return []
            orders = count_text(count, "other order")
            self.looked_at = f"the nodes run alone, in {orders} that the edges allow"
            try:
                missing = self._find(base, count)
            except StepFailedError as error:
                self.failed = True
                return [_failure(capture, self._steppers.index(error.stepper), error)]
        return [] if missing is None else [_race(capture, missing)]

    def _base(self) -> Results:
        """Copies of the results in the order of capture, of those that are always the same."""
        base = copies(self._run({}))
        for _ in range(_BASES - 1):
            differing = self._differing(base, {})
            base = {key: value for key, value in base.items() if key not in differing}
        return base

    def _find(self, base: Results, count: int) -> MissingEdge | None:
        generator = random.Random(_SEED)
        for number in range(count):
            for graph in self.graphs:
                stepper = self._steppers[graph]
                order = [*an_order(stepper.count, stepper.edges, generator.randrange)]
                if number == 0:
                    # As late as possible what was captured first, as far as the edges allow.
                    order = [*an_order(stepper.count, stepper.edges, lambda ready: ready - 1)]
                if self._differing(base, {graph: order}) and self._differing(base, {graph: order}):
                    return self._pair(base, graph, order)
        return None

    def _pair(self, base: Results, graph: int, order: Sequence[int]) -> MissingEdge | None:
        """By halves: the first node of the order with which the results become other ones, and the
        last one of those that it runs ahead of without which they do not."""

        def differs(place: int, after: int) -> list[Key]:
            return self._differing(base, {graph: moved_ahead(order, place, after)})

        place = _first(len(order), lambda place: bool(differs(place, 0)))
        if place is None:
            return None
        ahead = sorted((n for n in order[place + 1 :] if n < order[place]), reverse=True)
        passed = _first(len(ahead), lambda at: bool(differs(place, len(ahead) - 1 - at)))
        if passed is None or self._differing(base, {}):
            return None
        keys = differs(place, len(ahead) - 1 - passed)
        names = tuple(name for _, name in keys)
        return MissingEdge(graph, ahead[passed], order[place], names) if keys else None

    def _differing(self, base: Results, orders: Mapping[int, Sequence[int]]) -> list[Key]:
        """The results that are others in these orders."""
        now = self._run(orders)
        return [key for key in base if key not in now or not unchanged(base[key], now[key])]

    def _run(self, orders: Mapping[int, Sequence[int]]) -> dict[Key, torch.Tensor]:
        """The results themselves; the next run overwrites them. ``orders``: by graph; that of
        capture for the others."""
        runner, target = self._runner, self._runner.target
        for stepper in self._steppers:
            stepper.clear()
        runner.begin_replay(self._trial)
        state, factors = state_of(target.workload), random.Random(_SEED)
        with arithmetic():
            for tensor in map(held, (*state.values(), *(each for _, each in runner.arguments))):
                if tensor.dtype in _SCALED and tensor.layout == torch.strided:
                    write(tensor, dense(tensor.detach()) * factors.uniform(*_SCALES))
        for graph, stepper in enumerate(self._steppers):
            stepper.step(orders.get(graph))
        after = {("state", name): tensor for name, tensor in state.items()}
        return {**results_of(target.session), **after}


def _first(count: int, holds: Callable[[int], bool]) -> int | None:
    """By halves, the first of some numbers for which something holds that holds for the last."""
    low, high = -1, count - 1
    if high < 0 or not holds(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _failure(capture: Capture, index: int, error: StepFailedError) -> Finding:
    """A node that waits for too little: with what others have not written yet, it fails."""
    graph = capture.graphs[index]
    node = graph.nodes[error.node]
    reason = (
        f"node {node.id}, {_on_stream(capture, node)}, fails in another order that the edges "
        f"allow: {first_line(error.error)}"
    )
    return at_node(STREAM_RACE_IN_CAPTURE, reason, capture, graph, node)


def _race(capture: Capture, missing: MissingEdge) -> Finding:
    """A missing edge, at the line of the node that should wait."""
    graph = capture.graphs[missing.graph]
    first, second = graph.nodes[missing.first], graph.nodes[missing.second]
    before, frames = node_frames(capture, first), node_frames(capture, second)
    at = f" at {before[0].short}" if before else ""
    return Finding(
        STREAM_RACE_IN_CAPTURE,
        f"no edge orders node {second.id}, {_on_stream(capture, second)}, after node {first.id}, "
        f"{_on_stream(capture, first)}{at}: run in the other order, they give another "
        f"{names_text(list(missing.results), _SHOWN)}",
        frames or before,
        phase=f"capture {graph.name}",
    )


def _on_stream(capture: Capture, node: Node) -> str:
    r"""``\`aten::add.Tensor\` on stream 1``."""
    stream = "" if node.stream is None else f" on {capture.streams[node.stream].name}"
    return f"`{node_name(capture, node)}`{stream}"
