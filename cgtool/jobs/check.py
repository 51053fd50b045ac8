"""``cgtool check ENTRY``: what would fail, or freeze, when an ENTRY is captured."""

from __future__ import annotations

from cgtool.jobs.context import Answer, Context
from cgtool.model.jobs import CheckJob
from cgtool.observe import call_sites
from cgtool.program.workload import entry_of


def run(job: CheckJob, context: Context) -> Answer:
    """A report, and the capture where one succeeded. Raises CgtoolError."""
    return _simulate(job, context) if context.simulated else _check(job, context)


def _check(job: CheckJob, context: Context) -> Answer:
    from cgtool.devices.cuda import check
    from cgtool.devices.cuda.device import CudaDevice

    with call_sites.recorded():
        workload = context.load(job)
        findings, looked_at, captured = check.check(workload, job.capture, context.progress)
    entry = entry_of(workload, job.capture)
    report = context.report("check", entry, CudaDevice().environment(), findings, looked_at)
    return Answer(None, report=report) if captured is None else Answer(*captured, report)


def _simulate(job: CheckJob, context: Context) -> Answer:
    from cgtool.devices.simulated import check
    from cgtool.devices.simulated.capture import open_device

    assert context.simulated is not None
    with open_device() as device, call_sites.recorded():
        workload = context.load(job, device.factory_device)
        findings, looked_at, capture = check.check(
            device, workload, job.capture, context.progress, context.simulated
        )
        entry = entry_of(workload, job.capture)
        report = context.report("check", entry, device.environment(), findings, looked_at)
        return Answer(capture, report=report)
