"""``cgtool debug``: the graphs of an entry, run node by node, on either device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from msgspec.structs import replace

from cgtool.analysis.stepped import at_node, node_name, node_text, values_read
from cgtool.analysis.units import count_text
from cgtool.devices.device import CaptureWithDot, VerifyTarget
from cgtool.devices.stepping import StepFailedError, Stepper
from cgtool.findings import code
from cgtool.jobs.hanging_node import watched
from cgtool.jobs.values import values_of
from cgtool.jobs.verify.divergence import Divergence
from cgtool.jobs.verify.evidence import Trial
from cgtool.jobs.verify.orders import Orders
from cgtool.jobs.verify.runner import TrialRunner
from cgtool.jobs.verify.state import Snapshot
from cgtool.model.capture import Capture, TensorValues
from cgtool.model.finding import NOTE, Finding
from cgtool.model.options import DebugOptions, Progress
from cgtool.observe.capturing_queries import watch_capturing_queries
from cgtool.observe.raw_tensors import has_nan
from cgtool.program.boundary import first_line

DIFFERS_FROM_EAGER = code("differs-from-eager")
FIRST_NAN = code("first-nan")
NODE_FAULTS = code("node-faults")

TRIAL = Trial("captured inputs")
Values = dict[int, tuple[TensorValues, ...]]
"""By node of a graph: what its op has written."""


@dataclass
class Stepped:
    """What stepping has shown."""

    captured: CaptureWithDot
    """With the values of the first replay."""
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


def captured_to_step(target: VerifyTarget, progress: Progress) -> ToStep:
    """Raises CgtoolError when the code cannot be run or captured."""
    target.follows_memory = True
    target.warm_up(progress)
    start = Snapshot(target.workload, target.device)
    with watch_capturing_queries() as queries:
        target.capture(progress)
    target.session.require_nodes()
    described = target.described()
    return ToStep(described, target.steppers, TrialRunner(target, start), bool(queries))


def debug(target: VerifyTarget, options: DebugOptions, progress: Progress) -> Stepped:
    """Capture, and step. Raises CgtoolError when the code cannot be run or captured."""
    (capture, raw), steppers, runner, branches = captured_to_step(target, progress)
    found = Stepped((capture, raw))
    nodes = count_text(sum(stepper.count for stepper in steppers), "node")
    names = [graph.name for graph in target.session.graphs]
    found.looked_at.append(
        f"{nodes} of {', '.join(names)}, {count_text(options.replays, 'replay')} node by node"
    )
    found.looked_at += [
        f"not run alone: node {node} of {name}, {why}"
        for name, stepper in zip(names, steppers, strict=True)
        for node, why in stepper.whole.items()
    ]
    try:
        with watched(steppers, capture, progress):
            _step(found, steppers, runner, options.replays, progress)
            found.findings += _first_nan(found.captured[0], steppers, runner)
            if options.against_eager:
                progress("compare with eager")
                divergence = Divergence(runner, target.followed())
                relative = None if target.has_kernels else 0.0
                found.findings += _against_eager(
                    divergence, capture, options.replays, relative, branches=branches
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
) -> None:
    """Run all nodes of some replays, with the values of the first one. Raises StepFailedError."""
    capture, raw = found.captured
    values: list[Values] = [{} for _ in steppers]
    unread = 0
    runner.begin_replay(TRIAL)
    try:
        for found.replay in range(1, replays + 1):
            progress(f"step replay {found.replay}")
            for index, stepper in enumerate(steppers):
                if found.replay > 1:
                    stepper.step()
                else:
                    unread += step_with_values(stepper, values[index])
    finally:
        found.captured = with_values(capture, values), raw
    if unread:
        count = count_text(unread, "op")
        found.looked_at.append(f"no values of {count}: there was no memory to look at them")


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
        return values_of(stepper.written(node))
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


def _first_nan(
    capture: Capture, steppers: Sequence[Stepper], runner: TrialRunner
) -> Iterator[Finding]:
    candidates = [
        (graph, node, bad)
        for graph, _ in zip(capture.graphs, steppers, strict=False)
        for node in graph.nodes
        if (bad := next((tensor for tensor in node.values if tensor.nans), None)) is not None
    ]
    for graph, node, bad in candidates:
        given = _nans_given(steppers, runner, capture.graphs.index(graph), node.id, bad.name)
        if given is None:
            continue
        before = f"; it reads `{given}`, which has NaNs from before the replay" if given else ""
        reason = (
            f"{node_text(capture, graph, node)}, gives the first NaN: "
            f"{bad.nans:,} of {math.prod(bad.shape):,} numbers of `{bad.name}` {list(bad.shape)}, "
            f"at {list(bad.first or ())} first{before}"
        )
        finding = at_node(FIRST_NAN, reason, capture, graph, node)
        read = values_read(capture, graph, node)
        yield replace(finding, evidence=(*finding.evidence, *read))
        return


def _nans_given(
    steppers: Sequence[Stepper], runner: TrialRunner, graph: int, node: int, name: str
) -> str | None:
    """In another replay, as far as a node: an argument of its op that has NaNs already; empty for
    none, and None if the op does not write the NaNs that the tensor with this name has."""
    runner.begin_replay(TRIAL)
    for stepper in steppers[:graph]:
        stepper.step()
    stepper = steppers[graph]
    with stepper.running():
        for before in range(stepper.first(node)):
            stepper.run(before)
        given = [each for each, tensor in stepper.given(node) if has_nan(tensor)]
        stepper.spoil(node)
        for inside in range(stepper.first(node), node + 1):
            stepper.run(inside)
        if not has_nan(dict(stepper.written(node))[name]):
            return None
    return given[0] if given else ""


def _against_eager(
    divergence: Divergence,
    capture: Capture,
    replays: int,
    relative: float | None,
    *,
    branches: bool,
) -> Iterator[Finding]:
    trial = Trial("captured inputs", replays)
    for replay in range(replays):
        parting = divergence.find(trial, replay, relative)
        if parting is None:
            continue
        where = f"in replay {replay + 1}, {parting.detail}"
        # Code that asks whether it is captured takes another path on purpose.
        severity = NOTE if parting.only_one and branches else None
        if parting.node is None:
            at = f" at {parting.op}" if parting.op else ""
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
        yield replace(finding, evidence=(equal, *finding.evidence), severity=severity)
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
