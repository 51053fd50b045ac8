"""``cgtool check SCRIPT``: a script that captures and replays graphs itself."""

from __future__ import annotations

from pathlib import Path

from cgtool.jobs.context import Answer, Context
from cgtool.model.capture import Entry
from cgtool.model.jobs import ScriptJob
from cgtool.program.phases import seed_all


def run(job: ScriptJob, context: Context) -> Answer:
    """Run the script under observation. Raises CgtoolError for what it raises."""
    seed_all(job.capture.seed)
    if context.simulated is not None:
        from cgtool.devices.simulated import script as simulated
        from cgtool.devices.simulated.device import Device

        findings, looked_at = simulated.check(job.spec, job.arguments, context.progress)
        described = Device().environment()
    else:
        from cgtool.devices.cuda import script
        from cgtool.devices.cuda.device import CudaDevice

        findings, looked_at = script.check(job.spec, job.arguments, context.progress)
        described = CudaDevice().environment()
    entry = Entry(spec=job.spec, kind="script", file=str(Path(job.spec).resolve()), line=1)
    return Answer(None, report=context.report("check", entry, described, findings, looked_at))
