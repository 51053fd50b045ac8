"""``cgtool debug``: the graphs of an entry, run node by node, on either device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from cgtool.analysis.stepped import at_node, node_name, values_read
from cgtool.analysis.units import count_text
from cgtool.devices.device import CaptureWithDot, VerifyTarget
from cgtool.devices.stepping import StepFailedError, Stepper
from cgtool.findings import code
from cgtool.jobs.values import values_of
from cgtool.jobs.verify.divergence import Divergence
from cgtool.jobs.verify.evidence import Trial
from cgtool.jobs.verify.orders import Orders, race
from cgtool.jobs.verify.runner import TrialRunner
from cgtool.jobs.verify.state import Snapshot
from cgtool.model.capture import Capture, TensorValues
from cgtool.model.finding import NOTE, Finding
from cgtool.model.options import DebugOptions, Progress
from cgtool.observe.capturing_queries import watch_capturing_queries
from cgtool.program.boundary import first_line

DIFFERS_FROM_EAGER = code("differs-from-eager")
FIRST_NAN = code("first-nan")
NODE_FAULTS = code("node-faults")

Values = dict[int, tuple[TensorValues, ...]]
"""By node of a graph: what its op has written."""


@dataclass
class Stepped:
    """What stepping has shown."""

    captured: CaptureWithDot
    """With the values of the first replay."""
    findings: list[Finding] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)


def debug(target: VerifyTarget, options: DebugOptions, progress: Progress) -> Stepped:
    """Capture, and step. Raises CgtoolError when the code cannot be run or captured."""
    session = target.session
    target.follows_memory = True
    target.warm_up(progress)
    start = Snapshot(target.workload, target.device)
    with watch_capturing_queries() as queries:
        target.capture(progress)
    session.require_nodes()
    capture, raw = target.described()
    found = Stepped((capture, raw))
    steppers = target.steppers()
    runner, trial = TrialRunner(target, start), Trial("captured inputs")
    nodes = count_text(sum(stepper.count for stepper in steppers), "node")
    names = [graph.name for graph in session.graphs]
    found.looked_at.append(
        f"{nodes} of {', '.join(names)}, {count_text(options.replays, 'replay')} node by node"
    )
    found.looked_at += [
        f"not run alone: node {node} of {name}, {why}"
        for name, stepper in zip(names, steppers, strict=True)
        for node, why in stepper.whole.items()
    ]
    runner.begin_replay(trial)
    values: list[Values] = [{} for _ in steppers]
    for replay in range(options.replays):
        progress(f"step replay {replay + 1}")
        for index, stepper in enumerate(steppers):
            try:
                if replay:
                    stepper.step()
                else:
                    step_with_values(stepper, values[index])
            except StepFailedError as error:
                found.findings.append(_fault(capture, index, error, replay))
                break
        if replay == 0 or found.findings:
            capture = with_values(capture, values)
            found.captured = capture, raw
        if found.findings:
            return found
    found.findings += _first_nan(capture)
    if options.against_eager:
        progress("compare with eager")
        found.findings += _against_eager(
            Divergence(runner, target.followed()),
            capture,
            options,
            other_kernels=target.has_kernels,
            branches=bool(queries),
        )
        found.looked_at.append("what each op writes compared with eager, twice for its noise")
    if options.orders:
        progress("run the nodes in other orders")
        found.looked_at.append(f"{count_text(options.orders, 'other order')} that the edges allow")
        missing = Orders(runner, trial).find(options.orders)
        if missing is not None:
            found.findings.append(race(capture, missing))
    return found


def step_with_values(stepper: Stepper, values: Values) -> None:
    """Run all nodes, and read what each op has written as soon as it has run."""
    with stepper.running():
        for node in range(stepper.count):
            stepper.run(node)
            if tensors := values_of(stepper.written(node)):
                values[node] = tensors


def with_values(capture: Capture, values: list[Values]) -> Capture:
    """The capture with what was seen at nodes. ``values``: by graph, of as many as were stepped."""
    graphs = list(capture.graphs)
    for index, known in enumerate(values):
        nodes = list(graphs[index].nodes)
        for node, tensors in known.items():
            nodes[node] = replace(nodes[node], values=tensors)
        graphs[index] = replace(graphs[index], nodes=tuple(nodes))
    return replace(capture, graphs=tuple(graphs))


def _first_nan(capture: Capture) -> Iterator[Finding]:
    for graph in capture.graphs:
        for node in graph.nodes:
            bad = next((tensor for tensor in node.values if tensor.nans), None)
            if bad is None:
                continue
            reason = (
                f"node {node.id} of {graph.name}, `{node_name(capture, node)}`, gives the first "
                f"NaN: {bad.nans:,} of {math.prod(bad.shape):,} numbers of `{bad.name}` "
                f"{list(bad.shape)}, at {list(bad.first or ())} first"
            )
            finding = at_node(FIRST_NAN, reason, capture, graph, node)
            read = values_read(capture, graph, node)
            yield replace(finding, evidence=(*finding.evidence, *read))
            return


def _against_eager(
    divergence: Divergence,
    capture: Capture,
    options: DebugOptions,
    *,
    other_kernels: bool,
    branches: bool,
) -> Iterator[Finding]:
    trial = Trial("captured inputs", options.replays)
    for replay in range(options.replays):
        parting = divergence.find(trial, replay, None if other_kernels else 0.0)
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
            f"node {number} of {graph.name}, `{node_name(capture, node)}`, is the first whose "
            f"values are not those of eager: {where}"
        )
        finding = at_node(DIFFERS_FROM_EAGER, reason, capture, graph, node)
        equal = f"{count_text(parting.equal, 'op')} before it have equal results"
        yield replace(finding, evidence=(equal, *finding.evidence), severity=severity)
        return


def _fault(capture: Capture, index: int, error: StepFailedError, replay: int) -> Finding:
    graph = capture.graphs[index]
    node = graph.nodes[error.node]
    where = f"node {node.id}"
    for inner in error.inside:
        node = capture.graphs[node.body[0]].nodes[inner]
        where = f"node {inner} of the body of {where}"
    reason = (
        f"{where} of {graph.name}, `{node_name(capture, node)}`, fails in replay {replay + 1}: "
        f"{first_line(error.error)}"
    )
    return replace(at_node(NODE_FAULTS, reason, capture, graph, node), phase="replay")
