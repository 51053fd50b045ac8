"""``cgtool debug``: the graphs of an entry, run node by node, on either device."""

from __future__ import annotations

from cgtool.analysis.units import count_text
from cgtool.devices.device import Checked, NodePlace, VerifyTarget
from cgtool.devices.stepping import StepFailedError
from cgtool.findings import code
from cgtool.jobs.verify.evidence import Trial
from cgtool.jobs.verify.orders import Orders, race
from cgtool.jobs.verify.runner import TrialRunner
from cgtool.jobs.verify.state import Snapshot
from cgtool.model.finding import Finding
from cgtool.model.options import DebugOptions, Progress
from cgtool.program.boundary import first_line

NODE_FAULTS = code("node-faults")


def debug(target: VerifyTarget, options: DebugOptions, progress: Progress) -> Checked:
    """Capture, and step: (findings, what was looked at).

    Raises CgtoolError when the code cannot be run or captured.
    """
    session = target.session
    session.warm_up(progress)
    start = Snapshot(target.workload, target.device)
    target.capture(progress)
    session.require_nodes()
    places = target.places()
    steppers = target.steppers()
    runner, trial = TrialRunner(target, start), Trial("captured inputs")
    nodes = count_text(sum(stepper.count for stepper in steppers), "node")
    graphs = ", ".join(graph.name for graph in session.graphs)
    looked_at = [f"{nodes} of {graphs}, {count_text(options.replays, 'replay')} node by node"]
    looked_at += [
        f"not run alone: node {node} of {graph.name}, {why}"
        for graph, stepper in zip(session.graphs, steppers, strict=True)
        for node, why in stepper.whole.items()
    ]
    runner.begin_replay(trial)
    for replay in range(options.replays):
        progress(f"step replay {replay + 1}")
        for graph, stepper, known in zip(session.graphs, steppers, places, strict=True):
            try:
                stepper.step()
            except StepFailedError as error:
                return (_fault(error, graph.name, known[error.node], replay),), tuple(looked_at)
    if options.orders:
        progress("run the nodes in other orders")
        orders = Orders(runner, trial)
        looked_at.append(f"{count_text(options.orders, 'other order')} that the edges allow")
        missing = orders.find(options.orders)
        if missing is not None:
            return (race(target, missing),), tuple(looked_at)
    return (), tuple(looked_at)


def _fault(error: StepFailedError, graph: str, place: NodePlace, replay: int) -> Finding:
    return Finding(
        NODE_FAULTS,
        f"node {error.node} of {graph}, `{place.name}`, fails in replay {replay + 1}: "
        f"{first_line(error.error)}",
        place.frames,
        module=place.module,
        phase="replay",
        evidence=place.details,
    )
