"""``cgtool verify``: replays of an ENTRY, compared with eager."""

from __future__ import annotations

import msgspec

from cgtool.jobs.context import Answer, Context, empty_graph_explained
from cgtool.jobs.verify import targets
from cgtool.jobs.verify.procedure import verify
from cgtool.model.jobs import VerifyJob
from cgtool.observe import call_sites
from cgtool.program import describe


def run(job: VerifyJob, context: Context) -> Answer:
    """A report. Raises CgtoolError when the code cannot be run or captured."""
    with (
        targets.opened(context.device) as device,
        call_sites.recorded(),
    ):
        workload = context.load(job, device.device)
        with empty_graph_explained(workload):
            outcome = verify(device.target(workload, job.capture), job.options, context.progress)
        environment = device.environment()
    entry = describe.entry(workload, job.capture)
    report = context.report("verify", entry, environment, outcome.findings, outcome.looked_at)
    notes = (*report.notes, *outcome.notes)
    return Answer(
        None, report=msgspec.structs.replace(report, comparisons=outcome.comparisons, notes=notes)
    )
