"""``cgtool check`` on the simulated device: every hazard of a capture in one run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cgtool.detectors.check_entry import check_entry, findings_of_graph
from cgtool.devices.device import Checked
from cgtool.devices.simulated.capture import SimulatedSession, build
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.model.capture import Capture
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import Annotations
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.ops import OpCall
from cgtool.program.workload import Workload


def check(
    model: DeviceModel, workload: Workload, options: CaptureOptions, progress: Progress, why: str
) -> tuple[Checked, Capture | None]:
    """All hazards, and the capture when there was one; ``why`` is the reason why the device is
    simulated.

    Raises CgtoolError when the code fails in eager mode already.
    """
    session = SimulatedSession(workload, options, model=model, warmup_iters=1)
    captures: list[Capture] = []
    if options.seed is not None:
        torch.manual_seed(options.seed)

    def dry(annotations: Annotations) -> Sequence[OpCall]:
        session.follow_lifetimes(annotations)
        session.capture(annotations, progress)
        for graph in session.captured:
            for finding in findings_of_graph(graph.lanes, graph.record):
                model.findings.add(finding)
        captures.append(build(session, why))
        return session.record.calls

    with watch_annotations(options.annotations) as annotations:
        looked = check_entry(model, workload, options, progress, annotations, dry)
    return (model.findings.all(), looked), captures[0] if captures else None
