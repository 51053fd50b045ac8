"""``cgtool debug``: the graphs of an entry, run node by node, on either device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from msgspec.structs import replace

from cgtool.analysis.stepped import NODE_FAULTS, at_node, node_name, node_text, values_read
from cgtool.analysis.units import count_text
from cgtool.devices.device import CaptureWithDot, VerifyTarget
from cgtool.devices.stepping import StepFailedError, Stepper
from cgtool.findings import code
from cgtool.jobs.hanging_node import watched
from cgtool.jobs.verify.divergence import Divergence
from cgtool.jobs.verify.evidence import Trial
from cgtool.jobs.verify.orders import Orders
from cgtool.jobs.verify.runner import TrialRunner, results_of
from cgtool.jobs.verify.state import Snapshot, kept_values, state_of
from cgtool.model.capture import Capture, TensorValues
from cgtool.model.finding import NOTE, WARNING, Finding
from cgtool.model.options import DebugOptions, Progress
from cgtool.observe.capturing_queries import watch_capturing_queries
from cgtool.observe.raw_tensors import has_nan
from cgtool.program.boundary import first_line

DIFFERS_FROM_EAGER = code("differs-from-eager")
FIRST_NAN = code("first-nan")

TRIAL = Trial("captured inputs")
Values = dict[int, tuple[TensorValues, ...]]
"""By node of a graph: what its op has written."""


@dataclass
class Stepped:
    """What stepping has shown."""

    captured: CaptureWithDot
    """With the values of the first replay, or of the first one with a NaN."""
    replay: int = 0
    """The replay that is stepped, from 1."""
    findings: list[Finding] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)


class ToStep(NamedTuple):
    """A capture to run node by node."""

    captured: CaptureWithDot
    steppers: list[Stepper]
    runner: TrialRunner
    branches: bool
    """Whether the code asks whether it is captured, and may take another path then."""
    healed: bool
    """Whether replays begin with the state from before the warm-up, which has left NaNs."""


def captured_to_step(target: VerifyTarget, progress: Progress) -> ToStep:
    """Raises CgtoolError when the code cannot be run or captured."""
    target.follows_memory = True
    before = kept_values(target.workload, on_host=target.has_kernels)
    target.warm_up(progress)
    start = Snapshot(target.workload, target.device)
    healed = start.heal(before)
    with watch_capturing_queries() as queries:
        target.capture(progress)
    target.session.require_nodes()
    described = target.described()
    return ToStep(described, target.steppers, TrialRunner(target, start), bool(queries), healed)


def debug(target: VerifyTarget, options: DebugOptions, progress: Progress) -> Stepped:
    """Capture, and step. Raises CgtoolError when the code cannot be run or captured."""
    (capture, raw), steppers, runner, branches, healed = captured_to_step(target, progress)
    found = Stepped((capture, raw))
    nodes = count_text(sum(stepper.count for stepper in steppers), "node")
    names = [graph.name for graph in target.session.graphs]
    found.looked_at.append(
        f"{nodes} of {', '.join(names)}, {count_text(options.replays, 'replay')} node by node"
    )
    if healed:
        found.looked_at.append("from the state before the warm-up, which leaves NaNs")
    found.looked_at += [
        f"not run alone: node {node} of {name}, {why}"
        for name, stepper in zip(names, steppers, strict=True)
        for node, why in stepper.whole.items()
    ]
    try:
        with watched(steppers, capture, progress):
            with_nan = _step(found, steppers, runner, options.replays, progress)
            if with_nan:
                found.findings += FirstNan(found.captured[0], steppers, runner, with_nan).find()
            if options.against_eager:
                progress("compare with eager")
                divergence = Divergence(runner, target.followed())
                relative = None if target.has_kernels else 0.0
                is_random = not all(stepper.moves_generators for stepper in steppers)
                found.findings += _against_eager(
                    divergence,
                    capture,
                    options.replays,
                    relative,
                    branches=branches,
                    is_random=is_random,
                )
                if is_random:
                    found.looked_at.append(
                        "random numbers are those of the last replay: what differs is a note"
                    )
                found.looked_at.append(
                    "what each op writes compared with eager, twice for its noise"
                )
    except StepFailedError as error:
        found.findings.append(fault(capture, steppers, error, found.replay))
        return found
    if options.orders:
        progress("run the nodes in other orders")
        orders = Orders(runner, TRIAL)
        found.findings += orders.find(capture, options.orders, progress)
        found.looked_at.append(orders.looked_at)
    return found


def _step(
    found: Stepped,
    steppers: Sequence[Stepper],
    runner: TrialRunner,
    replays: int,
    progress: Progress,
) -> int:
    """Run all nodes of some replays, and read the values until one has a NaN. Returns which one,
    from 1; 0 for none. Raises StepFailedError."""
    capture, raw = found.captured
    unread = with_nan = 0
    runner.begin_replay(TRIAL)
    for found.replay in range(1, replays + 1):
        progress(f"step replay {found.replay}")
        values: list[Values] = [{} for _ in steppers]
        try:
            for index, stepper in enumerate(steppers):
                if with_nan:
                    stepper.step()
                else:
                    unread += step_with_values(stepper, values[index])
        finally:
            has_nans = any(
                tensor.nans for of in values for known in of.values() for tensor in known
            )
            if found.replay == 1 or has_nans:
                found.captured = with_values(capture, values), raw
        with_nan = with_nan or (found.replay if has_nans else 0)
    if unread:
        count = count_text(unread, "op")
        found.looked_at.append(f"no values of {count}: there was no memory to look at them")
    return with_nan


def step_with_values(stepper: Stepper, values: Values) -> int:
    """Run all nodes, and read what each op has written as soon as it has run. Returns of how many
    ops that was not possible."""
    unread = 0
    with stepper.running():
        for node in range(stepper.count):
            stepper.run(node)
            tensors = values_at(stepper, node)
            if tensors:
                values[node] = tensors
            unread += tensors is None
    return unread


def values_at(stepper: Stepper, node: int) -> tuple[TensorValues, ...] | None:
    """What the op has written whose last node has just run; None if there is no memory to look at
    it."""
    try:
        return stepper.values(node)
    except torch.OutOfMemoryError:
        return None


def with_values(capture: Capture, values: list[Values]) -> Capture:
    """The capture with what was seen at nodes. ``values``: by graph, of as many as were stepped."""
    graphs = list(capture.graphs)
    for index, known in enumerate(values):
        nodes = list(graphs[index].nodes)
        for node, tensors in known.items():
            nodes[node] = replace(nodes[node], values=tensors)
        graphs[index] = replace(graphs[index], nodes=tuple(nodes))
    return replace(capture, graphs=tuple(graphs))


class FirstNan:
    """The first NaN of a replay (from 1)."""

    def __init__(
        self, capture: Capture, steppers: Sequence[Stepper], runner: TrialRunner, replay: int
    ) -> None:
        """``capture``: with the values of that replay."""
        self._capture = capture
        self._steppers = steppers
        self._runner = runner
        self._replay = replay

    def find(self) -> list[Finding]:
        """The node that makes it, with what it reads. A program may mark with NaNs what it leaves
        out: where none is left at the end, that is a warning. Raises StepFailedError."""
        graphs = self._capture.graphs[: len(self._steppers)]
        for index, graph in enumerate(graphs):
            bad_tensors = ((n, tensor) for n in graph.nodes for tensor in n.values if tensor.nans)
            for node, bad in bad_tensors:
                if (given := self._given(index, node.id, bad.name)) is None:
                    continue
                before = f"; it reads `{given}`, which has NaNs already" if given else ""
                replay = f" in replay {self._replay}" if self._replay > 1 else ""
                numbers = f"{bad.nans:,} of {math.prod(bad.shape):,} numbers of `{bad.name}`"
                reason = (
                    f"{node_text(self._capture, graph, node)}, gives the first NaN{replay}: "
                    f"{numbers} {list(bad.shape)}, at {list(bad.first or ())} first{before}"
                )
                finding = at_node(FIRST_NAN, reason, self._capture, graph, node)
                evidence = (*finding.evidence, *values_read(self._capture, graph, node))
                severity = None if self._leaves_nans() else WARNING
                return [replace(finding, evidence=evidence, severity=severity)]
        return []

    def _begin(self) -> None:
        self._runner.begin_replay(TRIAL)
        for _ in range(1, self._replay):
            for stepper in self._steppers:
                stepper.step()

    def _given(self, graph: int, node: int, name: str) -> str | None:
        """As far as a node: a parameter or argument of its op that has NaNs before it runs; empty
        for none, and None if the op does not write the NaNs that the tensor with this name has."""
        self._begin()
        for stepper in self._steppers[:graph]:
            stepper.step()
        stepper = self._steppers[graph]
        names = {
            tensor.data_ptr(): name
            for name, tensor in state_of(self._runner.target.workload).items()
            if tensor.layout == torch.strided
        }
        with stepper.running():
            for before in range(stepper.first(node)):
                stepper.run(before)
            given = [
                names.get(tensor.data_ptr(), each)
                for each, tensor in stepper.given(node)
                if has_nan(tensor)
            ]
            stepper.spoil(node)
            for inside in range(stepper.first(node), node + 1):
                stepper.run(inside)
            if not has_nan(dict(stepper.written(node))[name]):
                return None
        return given[0] if given else ""

    def _leaves_nans(self) -> bool:
        self._begin()
        for stepper in self._steppers:
            stepper.step()
        target = self._runner.target
        left = [*results_of(target.session).values(), *state_of(target.workload).values()]
        return any(map(has_nan, left))


def _against_eager(
    divergence: Divergence,
    capture: Capture,
    replays: int,
    relative: float | None,
    *,
    branches: bool,
    is_random: bool,
) -> Iterator[Finding]:
    """``is_random``: other random numbers than those of eager may be drawn."""
    trial = Trial("captured inputs", replays)
    for replay in range(replays):
        parting = divergence.find(trial, replay, relative)
        if parting is None:
            continue
        where = f"in replay {replay + 1}, {parting.detail}"
        # Code that asks whether it is captured takes another path on purpose.
        severity = NOTE if (parting.only_one and branches) or is_random else None
        if parting.node is None:
            at = f" at {parting.op}" if parting.op and not parting.frames else ""
            reason, frames = f"{where}{at}", parting.frames
            yield Finding(DIFFERS_FROM_EAGER, reason, frames, phase="replay", severity=severity)
            return
        index, number = parting.node
        graph = capture.graphs[index]
        node = graph.nodes[number]
        reason = (
            f"{node_text(capture, graph, node)}, is the first whose values are not those of "
            f"eager: {where}"
        )
        finding = at_node(DIFFERS_FROM_EAGER, reason, capture, graph, node)
        equal = f"{count_text(parting.equal, 'op')} before it have equal results"
        evidence = (*parting.given, equal, *finding.evidence)
        yield replace(finding, evidence=evidence, severity=severity)
        return


def fault(
    capture: Capture, steppers: Sequence[Stepper], error: StepFailedError, replay: int
) -> Finding:
    """``replay``: from 1."""
    graph = capture.graphs[steppers.index(error.stepper)]
    node = graph.nodes[error.node]
    where = f"node {node.id}"
    for inner in error.inside:
        node = capture.graphs[node.body[0]].nodes[inner]
        where = f"node {inner} of the body of {where}"
    reason = (
        f"{where} of {graph.name}, `{node_name(capture, node)}`, fails in replay {replay}: "
        f"{first_line(error.error)}"
    )
    return replace(at_node(NODE_FAULTS, reason, capture, graph, node), phase="replay")
