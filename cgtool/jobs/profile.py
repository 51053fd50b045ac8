"""``cgtool profile``: every node of an ENTRY's graphs, timed."""

from __future__ import annotations

from cgtool.jobs.context import Answer, Context, empty_graph_explained
from cgtool.model.jobs import ProfileJob
from cgtool.program.spec import parse_entry


def run(job: ProfileJob, context: Context) -> Answer:
    """Capture and time. Raises CgtoolError: exit 3 where there is no GPU."""
    parse_entry(job.spec)
    context.require_gpu(
        "profile",
        fix="run it on a machine with an NVIDIA GPU; the capture that it saves can be shown here",
    )
    from cgtool.devices.cuda import profile

    workload = context.load(job)
    with empty_graph_explained(workload):
        return Answer(*profile.run(workload, job.capture, job.options, context.progress))
