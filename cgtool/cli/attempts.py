"""Worker processes: one attempt each, and the file that it leaves."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

from msgspec import Struct, structs

from cgtool.analysis.findings import place_of
from cgtool.analysis.graph.summary import graph_findings
from cgtool.cli.output import console
from cgtool.model.capture import Capture
from cgtool.model.capture_file import read
from cgtool.model.failure import EXIT_USER_CODE, CgtoolError, usage
from cgtool.model.files import atomic, is_file
from cgtool.model.finding import Finding, Report, read_report
from cgtool.model.options import (
    BenchOptions,
    CaptureOptions,
    CheckOptions,
    ProfileOptions,
    Request,
    VerifyOptions,
)


def attempt(
    spec: str,
    output: Path,
    *,
    options: CaptureOptions | None = None,
    bench: BenchOptions | None = None,
    profile: ProfileOptions | None = None,
    timeout: float | None = None,
    quiet: bool = False,
) -> Capture:
    """Capture an ENTRY in a worker process; the file is in place when this returns."""
    with atomic(output) as temporary:
        asked = options or CaptureOptions()
        request = Request(spec, str(temporary), asked, bench, profile)
        try:
            _work(request, timeout=timeout, quiet=quiet)
        except CgtoolError as error:
            raise _all_causes(error, request, timeout=timeout, quiet=quiet) from None
        return read(temporary)


def report_of(
    spec: str,
    asked: CheckOptions | VerifyOptions,
    *,
    options: CaptureOptions | None = None,
    timeout: float | None = None,
    quiet: bool = False,
) -> Report:
    """Check or verify an ENTRY in a worker process; a graph that was captured is looked at too."""
    request = Request(spec, "", options or CaptureOptions())
    if isinstance(asked, CheckOptions):
        request = structs.replace(request, check=asked)
    else:
        request = structs.replace(request, verify=asked)
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        saved = Path(folder) / "report.json"
        _work(structs.replace(request, output=str(saved)), timeout=timeout, quiet=quiet)
        report = read_report(saved)
        if (captured := saved.with_suffix(".cgt")).exists():
            more = graph_findings(read(captured))
            report = structs.replace(report, findings=(*report.findings, *more))
    return report


def _work(request: Request, *, timeout: float | None, quiet: bool) -> None:
    """Have a worker process do what is asked; its file is in place when this returns."""
    from cgtool.worker import supervisor

    show = not quiet and sys.stderr.isatty()
    try:
        if show:
            with console(stderr=True).status("start") as status:
                supervisor.run(request, timeout=timeout, progress=status.update)
        else:
            supervisor.run(request, timeout=timeout, progress=lambda _text: None)
    except supervisor.WorkerBug as error:
        raise RuntimeError(str(error)) from None


def _all_causes(
    error: CgtoolError, request: Request, *, timeout: float | None, quiet: bool
) -> CgtoolError:
    """The error with all further findings of ``cgtool check``, when it came from a capture.

    A failed capture leaves its process unusable, so the dry run is another attempt.
    """
    failure = error.failure
    if failure.exit_code != EXIT_USER_CODE or "capture" not in (failure.phase or ""):
        return error
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        saved = Path(folder) / "report.json"
        dry = structs.replace(
            request, output=str(saved), bench=None, profile=None, check=CheckOptions()
        )
        try:
            _work(dry, timeout=timeout, quiet=quiet)
            found = read_report(saved).findings
        except (CgtoolError, RuntimeError):
            # What the first attempt said stands.
            return error
    known = {_key(one) for one in failure.findings}
    more = tuple(one for one in found if _key(one) not in known)
    return CgtoolError(structs.replace(failure, findings=(*failure.findings, *more)))


def _key(finding: Finding) -> tuple[str, str, int]:
    place = place_of(finding.frames)
    return (finding.code, place.file, place.line) if place else (finding.code, "", 0)


def open_capture(
    target: str,
    *,
    options: CaptureOptions | None = None,
    quiet: bool = False,
    timeout: float | None = None,
) -> tuple[Capture, Path]:
    """A capture and its file; an ENTRY is captured into one that lives until the process ends."""
    check_name(target)
    path = Path(target)
    if target.endswith(".cgt") or (is_file(path) and ":" not in target):
        refuse_for_file(target, options or CaptureOptions())
        return read(path), path
    if ":" not in target:
        raise usage(
            f"{target}: neither a capture file nor an ENTRY",
            fix="give a .cgt file, or path/to/file.py:name to capture it first",
        )
    folder = tempfile.mkdtemp(prefix="cgtool-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    saved = Path(folder) / "capture.cgt"
    return attempt(target, saved, options=options, quiet=quiet, timeout=timeout), saved


def refuse_for_file(target: str, *options: Struct, **others: object) -> None:
    """Raises CgtoolError (exit 2) for an option of a capture or a measurement that was given for
    ``target``, a saved capture, which is only shown."""
    given = dict(others)
    for struct in options:
        for field in structs.fields(struct):
            value = getattr(struct, field.name)
            given[field.name] = None if value == field.default else value
    for name, value in given.items():
        if value is not None:
            raise usage(
                f"--{name.replace('_', '-')} says how an ENTRY is captured or measured, and "
                f"{target} is a saved capture, which is only shown",
                fix="leave the option out, or give an ENTRY",
            )


def check_name(target: str) -> None:
    """Raises CgtoolError (exit 2) for an ENTRY that names its file alone: it is no capture."""
    if target.endswith(".py"):
        raise usage(
            f"{target}: an ENTRY also names a function or a module in it",
            fix=f"write {target}:NAME",
        )
