"""``cgtool bench --against``: replays of two ENTRIES, side by side in one process."""

from __future__ import annotations

import contextlib
import io

from cgtool.jobs.context import Answer, Context
from cgtool.model.jobs import AgainstJob
from cgtool.program.import_isolation import ImportIsolation
from cgtool.program.load import load as load_entry
from cgtool.program.spec import parse_entry
from cgtool.program.workload import Workload


def run(job: AgainstJob, context: Context) -> Answer:
    """Capture and time both. Raises CgtoolError: exit 3 where there is no GPU."""
    parse_entry(job.spec)
    context.require_gpu("bench")
    from cgtool.devices.cuda import pairs

    inputs, seed = job.capture.input, job.capture.seed
    isolation = ImportIsolation(job.spec, job.against)

    def entry(name: str, spec: str) -> pairs.Entry:
        def load() -> Workload:
            isolation.switch_to(spec)
            # An ENTRY is loaded hundreds of times; what it prints is not repeated.
            with contextlib.redirect_stdout(io.StringIO()):
                return load_entry(spec, device=context.device, inputs=inputs, seed=seed)

        return pairs.Entry(name, load, job.capture)

    entries = entry("replay", job.spec), entry("against", job.against)
    with isolation.checked():
        return Answer(*pairs.run(entries, job.options, context.progress))
