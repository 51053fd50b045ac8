"""``cgtool bench``: eager and replays of an ENTRY, timed."""

from __future__ import annotations

from cgtool.jobs.context import Answer, Context, empty_graph_explained
from cgtool.model.jobs import BenchJob
from cgtool.program.spec import parse_entry


def run(job: BenchJob, context: Context) -> Answer:
    """Capture and time. Raises CgtoolError: exit 3 where there is no GPU."""
    # A wrong ENTRY is reported before a missing GPU.
    parse_entry(job.spec)
    context.require_gpu("bench")
    from cgtool.devices.cuda import bench

    workload = context.load(job)
    with empty_graph_explained(workload):
        return Answer(*bench.run(workload, job.capture, job.options, context.progress))
