"""Jobs of the command line, each in its own worker process, the files that they write, and how many
runs it takes to tell times apart."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar

from msgspec import Struct, structs

from cgtool.analysis.graph.summary import graph_findings
from cgtool.analysis.reports import explain, place_of, quoted
from cgtool.analysis.timing.regression import planned_looks
from cgtool.analysis.units import count_text
from cgtool.cli.options import WorkerOptions
from cgtool.cli.output import console
from cgtool.model import jobs
from cgtool.model.capture import Capture
from cgtool.model.capture_file import read
from cgtool.model.failure import EXIT_USER_CODE, CgtoolError, Failure, usage
from cgtool.model.files import atomic, is_file
from cgtool.model.finding import ERROR, NOTE, Finding, Report, read_report
from cgtool.model.options import (
    FIRST_RUNS,
    MAX_RUNS,
    MAX_SECONDS,
    BenchOptions,
    Progress,
    VerifyOptions,
)
from cgtool.program.spec import parse_entry

T = TypeVar("T")
CapturingJob = jobs.CaptureJob | jobs.BenchJob | jobs.AgainstJob | jobs.ProfileJob
"""Jobs that write a capture file; the others write a Report."""


def capture_of(
    job: CapturingJob, output: Path, options: WorkerOptions = WorkerOptions()
) -> Capture:
    """Do a job in a worker process; its capture file is in place when this returns. Raises
    CgtoolError."""
    with atomic(output) as temporary:
        _run(job, temporary, options)
        return read(temporary)


def report_of(
    job: jobs.CheckJob | jobs.ScriptJob | jobs.VerifyJob | jobs.DebugJob,
    options: WorkerOptions = WorkerOptions(),
    keep: Path | None = None,
) -> Report:
    """Do a job in a worker process; a graph that it captured is looked at too, and is kept in the
    file ``keep``."""
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        saved = Path(folder) / "report.json"
        interrupted = _run(job, saved, options)
        report = structs.replace(read_report(saved), interrupted=interrupted)
        captured = jobs.capture_path_for(saved)
        if keep is not None:
            with atomic(keep) as temporary:
                shutil.copyfile(captured, temporary)
        if isinstance(job, jobs.CheckJob) and captured.exists():
            capture = read(captured)
            more = quoted(graph_findings(capture), capture.sources)
            report = structs.replace(report, findings=(*report.findings, *more))
    return report


def _run(job: jobs.AnyJob, output: Path, options: WorkerOptions) -> bool:
    """True if Ctrl-C ended a script before its end. Raises CgtoolError, with all findings of a dry
    run where a capture failed."""
    from cgtool.worker import supervisor

    if not isinstance(job, jobs.ScriptJob):
        parse_entry(job.spec)  # before torch is imported
    try:
        with _shown(options) as progress:
            return supervisor.run(job, output, timeout=options.timeout, progress=progress)
    except CgtoolError as error:
        if isinstance(job, jobs.CheckJob | jobs.ScriptJob | jobs.DebugJob | jobs.StepJob):
            raise
        if error.failure.phase == "replay":
            raise _with_fault(error, job, options) from None
        raise _with_dry_run(error, job, options) from None


@contextmanager
def _shown(options: WorkerOptions) -> Iterator[Progress]:
    """The phase is shown in this block, if standard error is a terminal."""
    if options.quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with console(stderr=True).status("start") as status:

        def show(phase: str) -> None:
            if phase == jobs.RUNS_SCRIPT:
                status.stop()  # what it prints would begin behind the phase
            else:
                status.start()
                status.update(phase)

        yield show


@contextmanager
def conversation(
    job: jobs.StepJob, options: WorkerOptions
) -> Iterator[tuple[Capture, Callable[[jobs.Question], jobs.Answer]]]:
    """The capture of a job, and what asks its worker process. Raises CgtoolError, then too."""
    from cgtool.worker import supervisor

    parse_entry(job.spec)
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder, ExitStack() as held:
        saved = Path(folder) / "capture.cgt"
        with _shown(options) as progress:
            ask = held.enter_context(
                supervisor.conversation(job, saved, timeout=options.timeout, progress=progress)
            )
        yield read(saved), ask


def _with_fault(error: CgtoolError, job: jobs.ReplayingJob, options: WorkerOptions) -> CgtoolError:
    """The error of a failed replay with the node that fails, which another process finds: one
    after another, its nodes run alone there."""
    from cgtool.analysis.stepped import NODE_FAULTS

    try:
        report = report_of(jobs.DebugJob(job.spec, job.capture_options), options)
    except (CgtoolError, RuntimeError):
        return error
    failure = error.failure
    found = next((each for each in report.findings if each.code == NODE_FAULTS), None)
    if found is None:
        why = f"{failure.why}; run one at a time, no node fails"
        return CgtoolError(structs.replace(failure, why=why))
    return CgtoolError(
        structs.replace(
            failure,
            frames=found.frames or failure.frames,
            why=f"{found.reason} (its nodes were run one at a time, in another process)",
            fix=explain(found).fix,
            findings=(*report.findings, *failure.findings),
        )
    )


def _with_dry_run(
    error: CgtoolError, job: jobs.ReplayingJob, options: WorkerOptions
) -> CgtoolError:
    """The error with all further findings of ``cgtool check``, where those may name the cause.

    A failed capture leaves its process unusable, so the dry run has a process of its own.
    """
    failure = error.failure
    if failure.exit_code != EXIT_USER_CODE or not failure.uncertain:
        return error
    dry_run_only = "capture" in (failure.phase or "")
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        saved = Path(folder) / "report.json"
        try:
            _run(jobs.CheckJob(job.spec, job.capture_options, dry_run_only), saved, options)
            findings = read_report(saved).findings
        except (CgtoolError, RuntimeError):
            # The dry run failed too: report the first failure.
            return error
    failure = with_cause(failure, findings)
    known = {_key(finding) for finding in failure.findings}
    more = tuple(finding for finding in findings if _key(finding) not in known)
    return CgtoolError(structs.replace(failure, findings=(*failure.findings, *more)))


def with_cause(failure: Failure, findings: tuple[Finding, ...]) -> Failure:
    """The failure with the cause that ``cgtool check`` has found, if that is another one: an error
    of CUDA names a rule, and what it means is a guess from the source line. Calls of other threads
    end a capture at no line of it."""
    own, *others = failure.findings or (None,)
    same = [finding for finding in findings if own is not None and finding.code == own.code]
    frozen = [each for each in findings if explain(each).category == "wrong-numbers"]
    frozen = [each for each in frozen if each.severity != NOTE and each.frames]
    if same and frozen and all(finding.severity == NOTE for finding in same):
        # `check` calls it a note where a branch leaves out what outputs would depend on.
        cause = frozen[0]
        why, fix = cause.reason, explain(cause).fix
        return structs.replace(
            failure, frames=cause.frames, why=why, fix=fix, findings=(cause, *failure.findings)
        )
    if same:
        return failure
    place = place_of(failure.frames)
    explained = ((finding, explain(finding)) for finding in findings)
    errors = [
        (each.place != place, finding)
        for finding, each in explained
        if each.place and each.severity == ERROR and each.category == "capture-failure"
    ]
    if not errors:
        return failure
    cause = min(errors, key=itemgetter(0))[1]
    return structs.replace(
        failure,
        frames=cause.frames,
        why=cause.reason,
        fix=explain(cause).fix,
        findings=(cause, *others),
    )


def _key(finding: Finding) -> tuple[str, str, int]:
    place = place_of(finding.frames)
    return (finding.code, place.file, place.line) if place else (finding.code, "", 0)


_AT_ONCE = 4
"""Processes that import torch at the same time: each takes half a gigabyte of host memory."""


@dataclass
class Measuring(WorkerOptions):
    """How entries are measured: one worker process a measurement."""

    folder: Path = field(kw_only=True)
    """For the capture files of the workers."""
    max_seconds: float = MAX_SECONDS
    max_runs: int = MAX_RUNS
    timing: BenchOptions = field(default_factory=BenchOptions)
    against: str | None = None
    """The second ENTRY of ``bench --against``."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def file(self, number: int) -> Path:
        """The capture file of worker ``number``, from 0."""
        return self.folder / f"{number}.cgt"

    def capture(self, spec: str) -> Capture:
        """Raises CgtoolError."""
        return self._capture_of(jobs.CaptureJob(spec, self.capture_options))

    def bench(self, spec: str) -> Capture:
        """One run. Raises CgtoolError (exit 3) if there is no GPU."""
        if self.against is None:
            return self._capture_of(jobs.BenchJob(spec, self.capture_options, self.timing))
        return self._capture_of(
            jobs.AgainstJob(spec, self.capture_options, against=self.against, options=self.timing)
        )

    def _capture_of(self, job: CapturingJob) -> Capture:
        return capture_of(job, self.file(next(self._numbers)), self)

    def check(self, spec: str) -> Report:
        """Raises CgtoolError."""
        return report_of(jobs.check_job(spec, self.capture_options), self)

    def verify(self, spec: str, options: VerifyOptions | None = None) -> Report:
        """Raises CgtoolError."""
        job = jobs.VerifyJob(spec, self.capture_options, options or VerifyOptions())
        return report_of(job, self)

    @contextmanager
    def ahead(self, count: int) -> Iterator[int]:
        """Let the next workers, of ``count`` to come, import torch concurrently; returns how many.

        Never while one of them measures: other work on the host would disturb its times.
        """
        at_once = min(count, _AT_ONCE, os.cpu_count() or 1)
        if at_once < 2:
            yield count
            return
        from cgtool.worker import supervisor

        with supervisor.ahead(at_once):
            yield at_once


def is_saved(target: str) -> bool:
    """Whether a target is a saved capture rather than an ENTRY."""
    if target.endswith((".cgt", ".py")):
        return target.endswith(".cgt")
    return ":" not in target and is_file(Path(target))


def open_capture(
    target: str, options: WorkerOptions, *, flags: Mapping[str, str] = MappingProxyType({})
) -> tuple[Capture, Path]:
    """A capture and its file. An ENTRY is captured into a temporary file, which is deleted when the
    process ends."""
    if is_saved(target):
        refuse_for_file(target, options.capture_options, flags=flags)
        return read(Path(target)), Path(target)
    folder = tempfile.mkdtemp(prefix="cgtool-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    saved = Path(folder) / "capture.cgt"
    return capture_of(jobs.CaptureJob(target, options.capture_options), saved, options), saved


def refuse_for_file(
    target: str, *options: Struct, flags: Mapping[str, str] = MappingProxyType({}), **others: object
) -> None:
    """Raises CgtoolError (exit 2) for an option of a capture or a measurement that was given for
    ``target``, a saved capture, which is only shown. ``flags``: options that the command spells
    in another way than by the name of their field."""
    given = dict(others)
    for struct in options:
        for option in structs.fields(struct):
            value = getattr(struct, option.name)
            given[option.name] = None if value == option.default else value
    for name, value in given.items():
        if value is not None:
            raise usage(
                f"{flags.get(name, '--' + name.replace('_', '-'))} applies where an ENTRY is "
                f"captured or measured, not to a saved capture: {target}",
                fix="leave the option out, or give an ENTRY",
            )


# --- runs are added until times are decided: `bench --baseline` and `gate` share this
# A run is one worker process with its first capture, which is what counts as evidence. The looks
# are scheduled before anything is measured, so that the runs cannot choose when they are judged.


@dataclass
class Runs:
    """The runs of one entry, and how long more of them may be added."""

    run: Callable[[], Capture]
    """One more worker process. Raises CgtoolError."""
    max_seconds: float
    """Time of all runs, without the start of their workers: no run begins after that."""
    ahead: Callable[[int], AbstractContextManager[int]] = nullcontext
    """Given how many more runs there will be: prepares some of them, and returns how many."""
    captures: list[Capture] = field(default_factory=list)
    _seconds: float = 0.0

    def run_once(self) -> Capture:
        """Add one run, even if the time is over."""
        start = time.monotonic()
        self.captures.append(self.run())
        self._seconds += time.monotonic() - start
        return self.captures[-1]

    def up_to(self, count: int) -> bool:
        """Add runs until there are ``count``; returns whether there was time for all."""
        while (missing := count - len(self.captures)) > 0:
            with self.ahead(missing) as prepared:
                for _ in range(prepared):
                    if self._seconds >= self.max_seconds:
                        return False
                    self.run_once()
        return True

    @property
    def counted(self) -> str:
        """``3 runs``."""
        return count_text(len(self.captures), "run")

    @property
    def out_of_time(self) -> str:
        """The note of a report whose runs were cut short."""
        limit = f"the limit of {self.max_seconds:g} s"
        return f"{limit} was reached after {self.counted}: --max-seconds raises it"


@dataclass(frozen=True)
class Look(Generic[T]):
    """The result of the runs so far."""

    result: T
    open: bool
    """True if more runs may decide what these do not."""
    compared: bool
    """Times are compared with a baseline: it takes more than one run to tell them from it."""


def until_decided(
    runs: Runs, look: Callable[[int], Look[T]], *, first: int | None = None, most: int
) -> tuple[T, str | None]:
    """Add runs while something is open; the last result, and why no more runs were added where
    something is open still.

    ``look`` is given the number of looks that the level is shared between. With a baseline the
    first look is at ``first`` runs, ``FIRST_RUNS`` by default and no more than ``most``; without
    one, at the runs that there are.
    """
    before = len(runs.captures)
    looks = planned_looks(before, max(before, most))
    now = look(len(looks))
    if now.compared:
        first = max(before, first or min(FIRST_RUNS, most))
        looks = planned_looks(first, max(first, most))
    elif not now.open:
        return now.result, None
    in_time = True
    for count in looks:
        in_time = runs.up_to(count)
        now = look(len(looks))
        if not (now.open and in_time):
            break
    if not now.open:
        return now.result, None
    if in_time:
        return now.result, f"undecided after {runs.counted}, and --max-runs allows no more"
    return now.result, runs.out_of_time
