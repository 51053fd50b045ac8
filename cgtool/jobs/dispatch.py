"""Runs a request: one function per job, on the device that the request names.

A job does not ask which device it has: what only a GPU can do, it requires.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from msgspec.structs import replace

import cgtool
from cgtool.analysis.reports import quoted
from cgtool.analysis.stepped import node_values
from cgtool.devices.device import EMPTY_GRAPH, CaptureWithDot, Checked, Device
from cgtool.model import capture_file, jobs
from cgtool.model.capture import Caveat, Entry, created_now
from cgtool.model.failure import CgtoolError, machine, usage
from cgtool.model.files import atomic
from cgtool.model.finding import Finding, Report
from cgtool.model.jobs import Talk
from cgtool.model.options import CaptureOptions, Progress, unexpected
from cgtool.model.sources import read_sources, with_sources
from cgtool.observe import call_sites
from cgtool.program.description import entry_of, notes_on_generators
from cgtool.program.import_isolation import ImportIsolation
from cgtool.program.load import load, seed_all
from cgtool.program.workload import Workload


class JobResult(NamedTuple):
    """A capture, or a report and the capture behind it."""

    captured: CaptureWithDot | None
    report: Report | None = None


def run(request: jobs.Request, progress: Progress, talk: Talk) -> None:
    """Do the job, and write its answer to ``request.output``. Raises CgtoolError."""
    job, output = request.job, Path(request.output)
    context = JobContext(open_device(job.capture_options.device), progress, output, talk)
    if job.capture_options.times:
        context.device.require_gpu("--times", fix="leave out --times: the graph is the same")
    try:
        captured, report = RUN[type(job)](job, context)
    except CgtoolError as error:
        in_capture = "capture" in (error.failure.phase or "")
        if in_capture and context.device.simulated_because is None:
            # What CUDA refuses, it does not name.
            raise CgtoolError(replace(error.failure, uncertain=True)) from error.__cause__
        raise
    progress("write")
    if captured is not None:
        place = output if report is None else jobs.capture_path_for(output)
        capture_file.write(place, with_sources(captured[0]), captured[1])
    if report is not None:
        with atomic(output) as temporary:
            temporary.write_bytes(msgspec.json.encode(report))


@dataclass
class JobContext:
    """The device of a job, and where it reports its progress."""

    device: Device
    progress: Progress
    output: Path = Path()
    """Where a ``StepJob`` writes its capture before it answers."""
    talk: Talk = lambda _: None
    started_ns: int = field(default_factory=time.perf_counter_ns)

    def load(self, job: jobs.Job) -> Workload:
        """Raises CgtoolError for what the user's code raises or returns."""
        self.progress("load")
        return self.load_spec(
            job.spec, job.capture_options, refuse=not isinstance(job, jobs.CheckJob)
        )

    def load_spec(self, spec: str, options: CaptureOptions, *, refuse: bool = True) -> Workload:
        """Without reporting it."""
        return load(
            spec,
            device=self.device.factory_device,
            inputs=options.input,
            seed=options.seed,
            arguments=options.argument,
            refuse=refuse,
        )

    def report(self, command: str, entry: Entry, checked: Checked) -> Report:
        """``elapsed_ns`` counts from ``started_ns``."""
        findings, looked_at = checked
        frames = [frame for each in findings for frame in (*each.frames, *each.forward)]
        return Report(
            command=command,
            entry=entry,
            environment=self.device.environment(),
            created=created_now(),
            cgtool=cgtool.__version__,
            findings=quoted(findings, read_sources(frames)),
            looked_at=looked_at,
            notes=self.device.notes(),
            elapsed_ns=time.perf_counter_ns() - self.started_ns,
        )


def _capture(job: jobs.CaptureJob, context: JobContext) -> JobResult:
    with context.device.active(), call_sites.recorded():
        return JobResult(
            context.device.capture(context.load(job), job.capture_options, context.progress)
        )


def _check(job: jobs.CheckJob, context: JobContext) -> JobResult:
    with context.device.active(), context.device.observable(), call_sites.recorded():
        workload = context.load(job)
        checked, captured = context.device.check(
            workload, job.capture_options, context.progress, job.dry_run_only
        )
        entry = entry_of(workload, job.capture_options)
        report = context.report("check", entry, checked)
        report = replace(report, notes=(*report.notes, *notes_on_generators(workload)))
        if captured is not None:
            empty = [each for each in captured[0].caveats if each.code == EMPTY_GRAPH]
            report = replace(report, notes=(*report.notes, *empty))
        return JobResult(captured, report)


def _check_script(job: jobs.ScriptJob, context: JobContext) -> JobResult:
    seed_all(job.capture_options.seed)
    checked = context.device.check_script(job.spec, job.capture_options.argument, context.progress)
    entry = Entry(spec=job.spec, kind="script", file=str(Path(job.spec).resolve()), line=1)
    return JobResult(None, context.report("check", entry, checked))


def _verify(job: jobs.VerifyJob, context: JobContext) -> JobResult:
    from cgtool.jobs.verify.procedure import verify

    with context.device.active(), call_sites.recorded():
        workload = context.load(job)
        target = context.device.verify_target(workload, job.capture_options)
        outcome = verify(target, job.options, context.progress)
        entry = entry_of(workload, job.capture_options)
        report = context.report("verify", entry, (outcome.findings, outcome.looked_at))
        notes = (*report.notes, *outcome.notes, *notes_on_generators(workload))
    report = replace(report, comparisons=outcome.comparisons, notes=notes)
    return JobResult(None, report)


def _debug(job: jobs.DebugJob, context: JobContext) -> JobResult:
    from cgtool.jobs.debug import debug

    with context.device.active(), call_sites.recorded():
        workload = context.load(job)
        target = context.device.verify_target(workload, job.capture_options)
        found = debug(target, job.options, context.progress)
        entry = entry_of(workload, job.capture_options)
        report = context.report("debug", entry, (tuple(found.findings), tuple(found.looked_at)))
    capture, raw = found.captured
    # A file with values is read without the report.
    notes = (Caveat(each.code, _with_place(each)) for each in found.findings)
    capture = replace(capture, caveats=(*capture.caveats, *notes))
    return JobResult((capture, raw), replace(report, values=tuple(node_values(capture))))


def _step(job: jobs.StepJob, context: JobContext) -> JobResult:
    from cgtool.jobs.debug_server import DebugServer

    with context.device.active(), call_sites.recorded():
        target = context.device.verify_target(context.load(job), job.capture_options)
        server = DebugServer(target, context.progress)
        capture_file.write(context.output, with_sources(server.capture), server.raw)
        server.serve(context.talk)
    return JobResult(None)


def _with_place(finding: Finding) -> str:
    at = f" ({finding.frames[0].short})" if finding.frames else ""
    return f"{finding.reason}{at}"


def _bench(job: jobs.BenchJob, context: JobContext) -> JobResult:
    context.device.require_gpu("bench")
    from cgtool.devices.cuda import bench

    workload = context.load(job)
    return JobResult(
        bench.run(context.device, workload, job.capture_options, job.options, context.progress)
    )


def _profile(job: jobs.ProfileJob, context: JobContext) -> JobResult:
    context.device.require_gpu(
        "profile",
        fix="run it on a machine with an NVIDIA GPU; the capture that it saves can be shown here",
    )
    from cgtool.devices.cuda import profile

    workload = context.load(job)
    return JobResult(
        profile.run(context.device, workload, job.capture_options, job.options, context.progress)
    )


def _against(job: jobs.AgainstJob, context: JobContext) -> JobResult:
    """Replays of two ENTRIES, compared in one process."""
    context.device.require_gpu("bench")
    from cgtool.devices.cuda import pairs

    isolation = ImportIsolation(job.spec, job.against)

    def entry(name: str, spec: str) -> pairs.Entry:
        def load_again() -> Workload:
            isolation.switch_to(spec)
            # An ENTRY is loaded hundreds of times; what it prints is not repeated.
            with contextlib.redirect_stdout(io.StringIO()):
                return context.load_spec(spec, job.capture_options)

        return pairs.Entry(name, load_again, job.capture_options)

    entries = entry("replay", job.spec), entry("against", job.against)
    with isolation.checked():
        return JobResult(pairs.run(context.device, entries, job.options, context.progress))


RUN: dict[type[jobs.Job], Callable[[Any, JobContext], JobResult]] = {
    jobs.CaptureJob: _capture,
    jobs.BenchJob: _bench,
    jobs.AgainstJob: _against,
    jobs.ProfileJob: _profile,
    jobs.CheckJob: _check,
    jobs.ScriptJob: _check_script,
    jobs.VerifyJob: _verify,
    jobs.DebugJob: _debug,
    jobs.StepJob: _step,
}


_VISIBLE = "CUDA_VISIBLE_DEVICES"

# --- the only place that chooses between a GPU and the simulated device


def open_device(wanted: str | None) -> Device:
    """The device of ``--device``; without one a GPU if there is one.

    Raises CgtoolError: exit 2 for a text that is not a device, 3 where this GPU does not exist.
    """
    expected = unexpected("device", wanted)
    if expected is not None:
        raise usage(f"device `{wanted}` is not {expected}")
    reason = "--device simulated" if wanted == "simulated" else why_no_gpu()
    if reason is not None:
        if wanted not in (None, "simulated"):
            fix = "leave out --device to simulate a GPU"
            raise machine(f"device {wanted}: {reason}", fix=fix)
        from cgtool.devices.simulated.device import SimulatedDevice

        if wanted == "simulated":
            hide_gpus()
        return SimulatedDevice(reason)
    count = torch.cuda.device_count()
    if wanted is not None and int(wanted.partition(":")[2] or 0) >= count:
        raise machine(f"device {wanted}: this machine has {count} GPU{'s' * (count > 1)}")
    from cgtool.devices.cuda.device import CudaDevice

    return CudaDevice(wanted or "cuda")


def hide_gpus() -> None:
    """Have this process see no GPU, if it has not looked yet: on the simulated device, autograd
    then runs a backward on the thread that calls it, as the simulated streams expect."""
    before = os.environ.get(_VISIBLE)
    os.environ[_VISIBLE] = ""
    torch.cuda.is_available()  # what it finds is kept, in C++
    if before is None:
        del os.environ[_VISIBLE]
    else:
        os.environ[_VISIBLE] = before


def why_no_gpu() -> str | None:
    """Why PyTorch cannot use a GPU; None if it can."""
    if torch.cuda.is_available():
        return None
    return (
        "PyTorch is built without CUDA"
        if torch.version.cuda is None
        else "PyTorch sees no usable GPU"
    )
