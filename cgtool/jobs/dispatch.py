"""Runs a request: the one place that knows all jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cgtool.jobs import against, bench, capture, check, profile, script
from cgtool.jobs.context import Answer, Context, choose_device
from cgtool.jobs.verify import job as verify
from cgtool.model import jobs
from cgtool.model.jobs import Request
from cgtool.model.options import Progress

RUN: dict[type[jobs.Job], Callable[[Any, Context], Answer]] = {
    jobs.CaptureJob: capture.run,
    jobs.BenchJob: bench.run,
    jobs.AgainstJob: against.run,
    jobs.ProfileJob: profile.run,
    jobs.CheckJob: check.run,
    jobs.ScriptJob: script.run,
    jobs.VerifyJob: verify.run,
}


def run(request: Request, progress: Progress) -> None:
    """Do the job, and write its answer to ``request.output``. Raises CgtoolError."""
    job = request.job
    context = Context(*choose_device(job.capture.device), progress)
    if job.capture.times:
        context.require_gpu("--times", fix="leave out --times: the graph is the same")
    answer = RUN[type(job)](job, context)
    progress("write")
    answer.write(Path(request.output))
