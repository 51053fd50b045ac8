"""``cgtool capture``: the graphs of an ENTRY."""

from __future__ import annotations

from cgtool.jobs.context import Answer, Context, empty_graph_explained
from cgtool.model.jobs import CaptureJob
from cgtool.observe import call_sites


def run(job: CaptureJob, context: Context) -> Answer:
    """Capture on a GPU or on the simulated device. Raises CgtoolError."""
    return _simulate(job, context) if context.simulated else _capture(job, context)


def _capture(job: CaptureJob, context: Context) -> Answer:
    from cgtool.devices.cuda.capture import capture

    workload = context.load(job)
    with empty_graph_explained(workload):
        return Answer(*capture(workload, job.capture, context.progress))


def _simulate(job: CaptureJob, context: Context) -> Answer:
    from cgtool.devices.simulated.capture import capture, open_device

    assert context.simulated is not None
    with open_device() as device, call_sites.recorded():
        workload = context.load(job, device.factory_device)
        with empty_graph_explained(workload):
            return Answer(
                capture(device, workload, job.capture, context.progress, context.simulated)
            )
