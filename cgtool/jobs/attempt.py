"""What an attempt does once its process stands: capture, time, check, on a GPU or simulated."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import cgtool
from cgtool.model import capture_file
from cgtool.model.capture import Capture, Caveat, Entry, Environment
from cgtool.model.failure import machine
from cgtool.model.files import atomic
from cgtool.model.finding import Finding, Report
from cgtool.model.options import BenchOptions, Request
from cgtool.program import describe
from cgtool.program.inputs import seed_all
from cgtool.program.workload import Workload

Progress = Callable[[str], None]


def choose_device(wanted: str | None) -> tuple[str, str | None]:
    """(device for factories, why it is the simulated one or None)."""
    import torch

    if wanted == "simulated":
        return "simulated", "--device simulated was asked for"
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if wanted is not None and int(wanted.partition(":")[2] or 0) >= count:
            raise machine(f"device {wanted}: this machine has {count} GPU{'s' * (count > 1)}")
        return wanted or "cuda", None
    reason = (
        "PyTorch here is built without CUDA"
        if torch.version.cuda is None
        else "PyTorch sees no usable GPU"
    )
    if wanted is not None:
        raise machine(f"device {wanted}: {reason}", fix="leave the device out to simulate")
    return "simulated", reason


def attempt(request: Request, progress: Progress, before_load: Callable[[], None]) -> None:
    """Do what is asked, and write the file that holds the answer.

    ``before_load`` runs once PyTorch is imported, before any code of the user's.
    """
    progress("import torch")
    device, why = choose_device(request.capture.device)
    if request.check is not None and is_script(request.spec):
        _script(request, progress, before_load, why)
    elif request.verify is not None:
        _verify(request, progress, before_load, device, why)
    elif why is not None:
        _simulated(request, progress, before_load, why)
    else:
        _on_gpu(request, progress, before_load, device)


def _load(request: Request, device: str) -> Workload:
    from cgtool.program.load import load

    options = request.capture
    return load(request.spec, device=device, inputs=options.input, seed=options.seed)


def is_script(spec: str) -> bool:
    """``train.py``, where ``train.py:build`` is an ENTRY."""
    return ":" not in spec or Path(spec).is_file()


def _script(
    request: Request, progress: Progress, before_load: Callable[[], None], why: str | None
) -> None:
    """Run a script and watch the graphs that it captures itself."""
    assert request.check is not None
    seed_all(request.capture.seed)
    before_load()
    started = time.perf_counter_ns()
    arguments = request.check.arguments
    notes: tuple[Caveat, ...] = ()
    if why is not None:
        from cgtool.devices.simulated import script as simulated
        from cgtool.devices.simulated.streams import Device

        findings, looked = simulated.check(request.spec, arguments, progress)
        described, notes = Device().environment(), (_simulated_note(why),)
    else:
        from torch.cuda import current_device

        from cgtool.devices.cuda import script
        from cgtool.devices.cuda.environment import describe as describe_gpu

        findings, looked = script.check(request.spec, arguments, progress)
        described = describe_gpu(current_device())
    entry = Entry(spec=request.spec, kind="script", file=str(Path(request.spec).resolve()), line=1)
    report = Report(
        command="check",
        entry=entry,
        environment=described,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        cgtool=cgtool.__version__,
        findings=findings,
        looked_at=looked,
        notes=notes,
        elapsed_ns=time.perf_counter_ns() - started,
    )
    _write(report, None, Path(request.output))


def _simulated_note(why: str) -> Caveat:
    return Caveat("simulated", f"simulated on CPU tensors ({why})")


def _on_gpu(
    request: Request, progress: Progress, before_load: Callable[[], None], device: str
) -> None:
    from cgtool.detectors import checkpoints, optimizers
    from cgtool.devices.cuda import backend, bench, check, profile
    from cgtool.devices.cuda.environment import describe as describe_gpu
    from cgtool.program.empty import explained

    if request.check is not None:
        from torch.cuda import current_device

        with optimizers.remembered(), checkpoints.remembered():
            before_load()
            started = time.perf_counter_ns()
            workload = _load(request, device)
            findings, looked, captured = check.check(workload, request.capture, progress)
        _write(
            _report(request, workload, describe_gpu(current_device()), findings, looked, started),
            captured,
            Path(request.output),
        )
        return
    before_load()
    if request.bench is not None and request.bench.against is not None:
        capture_file.write(
            Path(request.output), *_against(request, request.bench, device, progress)
        )
        return
    workload = _load(request, device)
    with explained(workload):
        if request.bench is not None:
            capture, raw = bench.run(workload, request.capture, request.bench, progress)
        elif request.profile is not None:
            capture, raw = profile.run(workload, request.capture, request.profile, progress)
        else:
            capture, raw = backend.capture(workload, request.capture, progress)
    progress("write")
    capture_file.write(Path(request.output), capture, raw)


def _against(
    request: Request, asked: BenchOptions, device: str, progress: Progress
) -> tuple[Capture, dict[str, str]]:
    """Replays of two entries, side by side in this process."""
    from cgtool.devices.cuda import pairs
    from cgtool.program.import_isolation import Beside

    assert asked.against is not None
    beside = Beside(request.spec, asked.against)

    def entry(name: str, spec: str) -> pairs.Entry:
        def load() -> Workload:
            beside.turn(spec)
            # It is loaded hundreds of times: what it prints is no news.
            with contextlib.redirect_stdout(io.StringIO()):
                return _load(msgspec.structs.replace(request, spec=spec), device)

        return pairs.Entry(name, load, request.capture)

    with beside.watched():
        return pairs.run(
            (entry("replay", request.spec), entry("against", asked.against)), asked, progress
        )


def _simulated(
    request: Request, progress: Progress, before_load: Callable[[], None], why: str
) -> None:
    if request.bench is not None or request.profile is not None:
        from cgtool.program.spec import parse

        # What is no ENTRY here is none on a GPU either.
        parse(request.spec)
        command = "bench" if request.bench is not None else "profile"
        reason = why if why.startswith("PyTorch") else why[0].lower() + why[1:]
        joint = ": " if why.startswith("PyTorch") else ", and "
        raise machine(
            f"{command} needs a GPU to measure on{joint}{reason}",
            fix="run it where an NVIDIA GPU is; what `cgtool profile` saves there can be shown here"
            if request.profile is not None
            else None,
        )
    from cgtool.program.empty import explained

    if request.capture.times:
        raise machine(
            "--times needs a GPU to measure on", fix="leave --times out: the structure is the same"
        )
    from cgtool.detectors import checkpoints, optimizers
    from cgtool.devices.simulated import backend, check

    with backend.session() as device, optimizers.remembered(), checkpoints.remembered():
        before_load()
        started = time.perf_counter_ns()
        workload = _load(request, backend.DEVICE)
        if request.check is not None:
            findings, looked, captured = check.check(
                device, workload, request.capture, progress, why
            )
            report = _report(request, workload, device.environment(), findings, looked, started)
            report = msgspec.structs.replace(report, notes=(_simulated_note(why),))
            _write(report, None if captured is None else (captured, {}), Path(request.output))
            return
        with explained(workload):
            capture = backend.capture(device, workload, request.capture, progress, why)
    progress("write")
    capture_file.write(Path(request.output), capture)


def _verify(
    request: Request,
    progress: Progress,
    before_load: Callable[[], None],
    device: str,
    why: str | None,
) -> None:
    from cgtool.detectors import checkpoints, optimizers
    from cgtool.jobs.verify import targets
    from cgtool.jobs.verify.procedure import verify
    from cgtool.program.empty import explained

    assert request.verify is not None
    started = time.perf_counter_ns()
    with targets.opened(device) as opened, optimizers.remembered(), checkpoints.remembered():
        before_load()
        workload = _load(request, opened.device)
        with explained(workload):
            outcome = verify(opened.target(workload, request.capture), request.verify, progress)
        environment = opened.environment()
    report = _report(request, workload, environment, outcome.findings, outcome.looked_at, started)
    simulated = (Caveat("simulated", f"simulated on CPU tensors ({why})"),) if why else ()
    _write(
        msgspec.structs.replace(
            report,
            command="verify",
            comparisons=outcome.comparisons,
            notes=(*simulated, *outcome.notes),
        ),
        None,
        Path(request.output),
    )


def _report(
    request: Request,
    workload: Workload,
    environment: Environment,
    findings: tuple[Finding, ...],
    looked: tuple[str, ...],
    started: int,
) -> Report:
    return Report(
        command="check",
        entry=describe.entry(workload, request.capture),
        environment=environment,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        cgtool=cgtool.__version__,
        findings=findings,
        looked_at=looked,
        elapsed_ns=time.perf_counter_ns() - started,
    )


def capture_beside(report: Path) -> Path:
    """Where check leaves the capture that it made, for the analyses."""
    return report.with_suffix(".cgt")


def _write(report: Report, captured: tuple[Capture, dict[str, str]] | None, output: Path) -> None:
    if captured is not None:
        capture_file.write(capture_beside(output), *captured)
    with atomic(output) as temporary:
        temporary.write_bytes(msgspec.json.encode(report))
