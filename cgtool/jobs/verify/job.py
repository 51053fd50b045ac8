"""``cgtool verify``: replays of an ENTRY, compared with eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from cgtool.jobs.context import Answer, Context, empty_graph_explained
from cgtool.jobs.verify.procedure import verify
from cgtool.jobs.verify.runs import VerifyTarget
from cgtool.model.jobs import VerifyJob
from cgtool.model.options import CaptureOptions
from cgtool.observe import call_sites
from cgtool.program.workload import Workload, entry_of

MakeTarget = Callable[[Workload, CaptureOptions], VerifyTarget]


def run(job: VerifyJob, context: Context) -> Answer:
    """A report. Raises CgtoolError when the code cannot be run or captured."""
    with _device(context) as (factory_device, make_target), call_sites.recorded():
        workload = context.load(job, factory_device)
        with empty_graph_explained(workload):
            target = make_target(workload, job.capture)
            outcome = verify(target, job.options, context.progress)
        environment = target.device.environment()
    entry = entry_of(workload, job.capture)
    report = context.report("verify", entry, environment, outcome.findings, outcome.looked_at)
    notes = (*report.notes, *outcome.notes)
    return Answer(
        None, report=msgspec.structs.replace(report, comparisons=outcome.comparisons, notes=notes)
    )


@contextlib.contextmanager
def _device(context: Context) -> Iterator[tuple[str, MakeTarget]]:
    """What a factory gets as ``device``, and the target that a workload is verified on. To be
    entered before the user's file is loaded."""
    if context.simulated is None:
        from cgtool.jobs.verify.on_cuda import Cuda

        yield context.device, Cuda
        return
    from cgtool.devices.simulated.capture import open_device
    from cgtool.jobs.verify.on_simulated import Simulated

    with open_device() as device:
        yield device.factory_device, partial(Simulated, device)
