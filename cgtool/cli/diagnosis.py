"""What else would end a capture that failed: found by a dry run in a process of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from msgspec import structs

from cgtool.analysis.findings import place_of
from cgtool.model.failure import EXIT_USER_CODE, CgtoolError
from cgtool.model.finding import Finding, read_report
from cgtool.model.options import CheckOptions, Request


def all_causes(
    error: CgtoolError, request: Request, *, timeout: float | None, quiet: bool
) -> CgtoolError:
    """The error with all further findings of ``cgtool check``, when it came from a capture.

    A failed capture leaves its process unusable, so the dry run is another attempt.
    """
    failure = error.failure
    if failure.exit_code != EXIT_USER_CODE or "capture" not in (failure.phase or ""):
        return error
    from cgtool.cli.output import work

    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        saved = Path(folder) / "report.json"
        dry = structs.replace(
            request,
            output=str(saved),
            bench=None,
            profile=None,
            verify=None,
            check=CheckOptions(),
        )
        try:
            work(dry, timeout=timeout, quiet=quiet)
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
