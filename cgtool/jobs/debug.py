"""``cgtool debug``: the graphs of an entry, run node by node, on either device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from msgspec.structs import replace

from cgtool.analysis.stepped import at_node, node_frames, node_name
from cgtool.analysis.units import count_text
from cgtool.devices.device import CaptureWithDot, VerifyTarget
from cgtool.devices.stepping import StepFailedError, Stepper
from cgtool.findings import code
from cgtool.jobs.hanging_node import watched
from cgtool.jobs.values import values_of
from cgtool.jobs.verify.evidence import Trial
from cgtool.jobs.verify.orders import Orders, race
from cgtool.jobs.verify.runner import TrialRunner
from cgtool.jobs.verify.state import Snapshot
from cgtool.model.capture import Capture, TensorValues
from cgtool.model.finding import Finding
from cgtool.model.options import DebugOptions, Progress
from cgtool.observe.effects import UNINITIALIZED
from cgtool.program.boundary import first_line

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
    findings: list[Finding] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)


def captured_to_step(
    target: VerifyTarget, progress: Progress
) -> tuple[CaptureWithDot, list[Stepper], TrialRunner]:
    """Capture to run node by node. Raises CgtoolError when the code cannot be run or captured."""
    target.follows_memory = True
    target.warm_up(progress)
    start = Snapshot(target.workload, target.device)
    target.capture(progress)
    target.session.require_nodes()
    return target.described(), target.steppers(), TrialRunner(target, start)


def described_node(capture: Capture, index: int, node: int) -> str:
    """``node 17 of forward, `aten::mm`, model.py:12``."""
    graph = capture.graphs[index]
    frames = node_frames(capture, graph.nodes[node])
    line = f", {frames[0].short}" if frames else ""
    return f"node {node} of {graph.name}, `{node_name(capture, graph.nodes[node])}`{line}"


def debug(target: VerifyTarget, options: DebugOptions, progress: Progress) -> Stepped:
    """Capture, and step. Raises CgtoolError when the code cannot be run or captured."""
    (capture, raw), steppers, runner = captured_to_step(target, progress)
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
    runner.begin_replay(TRIAL)
    values: list[Values] = [{} for _ in steppers]
    unread = 0
    with watched(steppers, partial(described_node, capture), progress):
        for replay in range(options.replays):
            progress(f"step replay {replay + 1}")
            for index, stepper in enumerate(steppers):
                try:
                    if replay:
                        stepper.step()
                    else:
                        unread += _step_with_values(stepper, values[index])
                except StepFailedError as error:
                    found.findings.append(fault(capture, index, error, replay))
                    break
            if replay == 0 or found.findings:
                capture = with_values(capture, values)
                found.captured = capture, raw
            if found.findings:
                break
    if unread:
        count = count_text(unread, "op")
        found.looked_at.append(f"no values of {count}: there was no memory to look at them")
    if found.findings:
        return found
    found.findings += _first_nan(capture)
    if options.orders:
        progress("run the nodes in other orders")
        found.looked_at.append(f"{count_text(options.orders, 'other order')} that the edges allow")
        missing = Orders(runner, TRIAL).find(options.orders, progress)
        if missing is not None:
            found.findings.append(race(capture, missing))
    return found


def _step_with_values(stepper: Stepper, values: Values) -> int:
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
        return tuple(values_of(*each) for each in stepper.written(node))
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


def nan_of(op: str, values: Iterable[TensorValues]) -> TensorValues | None:
    """The first tensor with NaNs that an op has computed."""
    bad = next((tensor for tensor in values if tensor.nans), None)
    return None if op.startswith(UNINITIALIZED) else bad


def _first_nan(capture: Capture) -> Iterator[Finding]:
    for graph in capture.graphs:
        for node in graph.nodes:
            name = node_name(capture, node)
            bad = nan_of(name, node.values)
            if bad is None:
                continue
            yield at_node(
                FIRST_NAN,
                f"node {node.id} of {graph.name}, `{name}`, gives the first NaN: {bad.nans:,} of "
                f"{math.prod(bad.shape):,} numbers of `{bad.name}` {list(bad.shape)}, at "
                f"{list(bad.first or ())} first",
                capture,
                graph,
                node,
            )
            return


def fault(capture: Capture, index: int, error: StepFailedError, replay: int) -> Finding:
    graph = capture.graphs[index]
    node = graph.nodes[error.node]
    reason = (
        f"node {node.id} of {graph.name}, `{node_name(capture, node)}`, fails in replay "
        f"{replay + 1}: {first_line(error.error)}"
    )
    return replace(at_node(NODE_FAULTS, reason, capture, graph, node), phase="replay")
