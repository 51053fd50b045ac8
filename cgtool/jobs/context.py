"""What all jobs share: the device, loading the ENTRY, and the answer that is written to a file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch

import cgtool
from cgtool.model import capture_file
from cgtool.model.capture import Capture, Caveat, Entry, Environment
from cgtool.model.failure import CgtoolError, machine, usage
from cgtool.model.files import atomic
from cgtool.model.finding import Finding, Report
from cgtool.model.jobs import Job, capture_beside
from cgtool.model.options import Progress, unexpected
from cgtool.program.load import load
from cgtool.program.objects import reach, short, type_name
from cgtool.program.workload import Part, Workload, inputs_of


def choose_device(wanted: str | None) -> tuple[str, str | None]:
    """The device, and why it is the simulated one (None on a GPU).

    Raises CgtoolError: exit 2 for a text that is not a device, 3 where this GPU does not exist.
    """
    expected = unexpected("device", wanted)
    if expected is not None:
        raise usage(f"device `{wanted}` is not {expected}")
    if wanted == "simulated":
        return wanted, "--device simulated"
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if wanted is not None and int(wanted.partition(":")[2] or 0) >= count:
            raise machine(f"device {wanted}: this machine has {count} GPU{'s' * (count > 1)}")
        return wanted or "cuda", None
    reason = (
        "PyTorch is built without CUDA"
        if torch.version.cuda is None
        else "PyTorch sees no usable GPU"
    )
    if wanted is not None:
        raise machine(f"device {wanted}: {reason}", fix="leave out --device to simulate a GPU")
    return "simulated", reason


@dataclass(frozen=True)
class Answer:
    """What a job made: a capture with its raw texts, or a report and the capture behind it."""

    capture: Capture | None
    raw: dict[str, str] = field(default_factory=dict)
    report: Report | None = None

    def write(self, output: Path) -> None:
        """The report at ``output`` and the capture beside it; without a report, the capture."""
        if self.capture is not None:
            path = output if self.report is None else capture_beside(output)
            capture_file.write(path, self.capture, self.raw)
        if self.report is not None:
            with atomic(output) as temporary:
                temporary.write_bytes(msgspec.json.encode(self.report))


@dataclass
class Context:
    """What a job runs on, and what it reports its progress to."""

    device: str
    """As ``torch.device`` takes it: ``cuda``, ``cuda:1``; ``simulated`` for the simulated GPU."""
    simulated: str | None
    """Why the GPU is simulated; None on a GPU."""
    progress: Progress
    started_ns: int = field(default_factory=time.perf_counter_ns)

    def load(self, job: Job, device: str | None = None) -> Workload:
        """Raises CgtoolError for what the user's code raises or returns."""
        self.progress("load")
        options = job.capture
        return load(job.spec, device=device or self.device, inputs=options.input, seed=options.seed)

    def require_gpu(self, command: str, fix: str | None = None) -> None:
        """Raises CgtoolError (exit 3) on the simulated device, which has no times."""
        if self.simulated is not None:
            raise machine(f"{command} needs a GPU ({self.simulated})", fix=fix)

    def report(
        self,
        command: str,
        entry: Entry,
        environment: Environment,
        findings: tuple[Finding, ...],
        looked_at: tuple[str, ...],
    ) -> Report:
        """``elapsed_ns`` counts from ``started_ns``."""
        notes: tuple[Caveat, ...] = ()
        if self.simulated is not None:
            notes = (Caveat("simulated", f"simulated on CPU tensors ({self.simulated})"),)
        return Report(
            command=command,
            entry=entry,
            environment=environment,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            cgtool=cgtool.__version__,
            findings=findings,
            looked_at=looked_at,
            notes=notes,
            elapsed_ns=time.perf_counter_ns() - self.started_ns,
        )


@contextlib.contextmanager
def empty_graph_explained(workload: Workload) -> Iterator[None]:
    """Adds to the failure of an empty graph why it is empty, where no callable has a tensor."""
    try:
        yield
    except CgtoolError as error:
        failure = error.failure
        if "the graph is empty" not in failure.what:
            raise
        part = workload.parts[0]
        failure = msgspec.structs.replace(failure, frames=failure.frames or part.frames)
        if not any(map(_has_tensors, workload.parts)):
            failure = msgspec.structs.replace(
                failure,
                why="no argument is a tensor, and no op launched work: "
                f"{part.name} is given {_arguments_of(part)}",
                fix="pass the tensors that it works on, on the device that the factory is given",
            )
        raise CgtoolError(failure) from None


def _has_tensors(part: Part) -> bool:
    reached = reach(part.function)
    return bool(inputs_of(part) or part.modules or reached.modules or reached.tensors)


def _arguments_of(part: Part) -> str:
    arguments = [*part.args, *part.kwargs.values()]
    if not arguments:
        return "no arguments"
    shown = ", ".join(f"{short(argument)} ({type_name(argument)})" for argument in arguments[:3])
    return f"only {shown}" + (" and more" if len(arguments) > 3 else "")
