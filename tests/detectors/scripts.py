"""What ``cgtool check`` says of a script on the simulated device."""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cgtool.devices.simulated import forked
from cgtool.devices.simulated.cudagraph import check_script
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.jobs.dispatch import hide_gpus
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import NOTE, WARNING
from cgtool.observe import frames
from tests import forked_workers
from tests.detectors.autograd_threads import backwards_on_threads

_MARK = re.compile(r"# <- ([\w-]+)")


@dataclass(frozen=True)
class Outcome:
    """What ``cgtool check`` says of one script."""

    findings: frozenset[tuple[str, int | None]]
    """Code and line."""
    reasons: tuple[str, ...]
    looked: tuple[str, ...]
    failure: str | None
    failed_at: int | None = None
    """Line of the script."""
    notes: frozenset[str] = frozenset()
    """Codes of the findings that are notes though their page has another severity."""
    warnings: frozenset[str] = frozenset()
    """Codes of those that are warnings for the same reason."""
    fixes: frozenset[str | None] = frozenset()
    """Those that are more specific than the fix of the page."""
    evidence: frozenset[str] = frozenset()
    times: tuple[int, ...] = ()
    """How often each of the findings happened."""

    @property
    def lines(self) -> list[int | None]:
        """Of the findings and of the failure."""
        return [*(line for _, line in self.findings), self.failed_at]


def marks(source: str) -> frozenset[tuple[str, int]]:
    """(code, line) of each ``# <- CODE``."""
    return frozenset(
        (match[1], number)
        for number, line in enumerate(source.splitlines(), 1)
        for match in _MARK.finditer(line)
    )


def _hide_own_frames() -> None:
    """Nothing is around a script that a user checks: no call chain may go on in the tests."""
    roots = (*frames._roots(), __file__, forked_workers.__file__)
    frames._roots = lambda: roots  # type: ignore[assignment]
    frames.is_internal_file.cache_clear()
    frames._is_internal.clear()


def check_as_on_a_gpu(path: Path) -> Outcome:
    """``check``, where autograd has a thread of its own."""
    device = ScriptDevice()
    with backwards_on_threads(device):
        return check(path, device)


def check_like_a_gpu(path: Path) -> Outcome:
    """``check``, where captured code is not called again, as on a GPU."""
    importlib.import_module("tests.corpus.like_a_gpu")
    return check(path)


def check(path: Path, device: ScriptDevice | None = None) -> Outcome:
    """Check a script in this process, which does nothing else."""
    hide_gpus()
    _hide_own_frames()
    forked.strict = True
    os.chdir(path.parent)
    device = device or ScriptDevice()
    looked: tuple[str, ...] = ()
    failure = failed_at = None
    try:
        findings, looked = check_script(
            str(path), (), lambda _phase: None, device or ScriptDevice()
        )
    except CgtoolError as error:
        findings = error.failure.findings
        failure = error.failure.message
        chain = error.failure.frames
        failed_at = next((frame.line for frame in chain if frame.file == str(path)), None)
    return Outcome(
        frozenset(
            (finding.code, finding.frames[0].line if finding.frames else None)
            for finding in findings
        ),
        tuple(finding.reason for finding in findings),
        looked,
        failure,
        failed_at,
        frozenset(finding.code for finding in findings if finding.severity == NOTE),
        frozenset(finding.code for finding in findings if finding.severity == WARNING),
        frozenset(finding.fix for finding in findings),
        frozenset(text for finding in findings for text in finding.evidence),
        tuple(finding.times for finding in findings),
    )
