"""``cgtool debug``: the graphs of an entry, run node by node, on either device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cgtool.analysis.units import count_text
from cgtool.devices.device import NodePlace, VerifyTarget
from cgtool.devices.stepping import StepFailedError, Stepper
from cgtool.findings import code
from cgtool.jobs.values import values_of
from cgtool.jobs.verify.evidence import Trial
from cgtool.jobs.verify.orders import Orders, race
from cgtool.jobs.verify.runner import TrialRunner
from cgtool.jobs.verify.state import Snapshot
from cgtool.model.finding import Finding, NodeValues
from cgtool.model.options import DebugOptions, Progress
from cgtool.observe.effects import UNINITIALIZED
from cgtool.program.boundary import first_line

FIRST_NAN = code("first-nan")
NODE_FAULTS = code("node-faults")


@dataclass
class Stepped:
    """What stepping has shown."""

    findings: list[Finding] = field(default_factory=list)
    values: list[NodeValues] = field(default_factory=list)
    """Of the first replay."""
    looked_at: list[str] = field(default_factory=list)


def debug(target: VerifyTarget, options: DebugOptions, progress: Progress) -> Stepped:
    """Capture, and step. Raises CgtoolError when the code cannot be run or captured."""
    session, found = target.session, Stepped()
    session.warm_up(progress)
    start = Snapshot(target.workload, target.device)
    target.follows_memory = True
    target.capture(progress)
    session.require_nodes()
    places = target.places()
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
    for replay in range(options.replays):
        progress(f"step replay {replay + 1}")
        for name, stepper, known in zip(names, steppers, places, strict=True):
            try:
                if replay:
                    stepper.step()
                else:
                    found.values += _values(name, stepper, known)
            except StepFailedError as error:
                found.findings.append(_fault(error, name, known[error.node], replay))
                return found
    found.findings += _first_nan(found.values, dict(zip(names, places, strict=True)))
    if options.orders:
        progress("run the nodes in other orders")
        found.looked_at.append(f"{count_text(options.orders, 'other order')} that the edges allow")
        missing = Orders(runner, trial).find(options.orders)
        if missing is not None:
            found.findings.append(race(target, missing))
    return found


def _values(graph: str, stepper: Stepper, places: list[NodePlace]) -> Iterator[NodeValues]:
    """Run all nodes, and read what each op has written as soon as it has run."""
    with stepper.running():
        for node in range(stepper.count):
            stepper.run(node)
            tensors = tuple(values_of(*each) for each in stepper.written(node))
            if tensors:
                place = places[node]
                line = place.frames[0] if place.frames else None
                file, number = (line.file, line.line) if line else (None, None)
                yield NodeValues(graph, node, place.name, place.module, file, number, tensors)


def _first_nan(values: list[NodeValues], places: dict[str, list[NodePlace]]) -> Iterator[Finding]:
    for each in values:
        bad = next((tensor for tensor in each.tensors if tensor.nans), None)
        if bad is None or each.op.startswith(UNINITIALIZED):
            continue
        place = places[each.graph][each.node]
        size = 1
        for length in bad.shape:
            size *= length
        yield Finding(
            FIRST_NAN,
            f"node {each.node} of {each.graph}, `{each.op}`, gives the first NaN: {bad.nans:,} of "
            f"{size:,} numbers of `{bad.name}` {list(bad.shape)}, at {list(bad.first or ())} first",
            place.frames,
            module=each.module,
            phase=f"capture {each.graph}",
            evidence=place.details,
        )
        return


def _fault(error: StepFailedError, graph: str, place: NodePlace, replay: int) -> Finding:
    node = f"node {error.node}"
    for inner in error.inside:
        node, place = f"node {inner} of the body of {node}", place.body[inner]
    return Finding(
        NODE_FAULTS,
        f"{node} of {graph}, `{place.name}`, fails in replay {replay + 1}: "
        f"{first_line(error.error)}",
        place.frames,
        module=place.module,
        phase="replay",
        evidence=place.details,
    )
