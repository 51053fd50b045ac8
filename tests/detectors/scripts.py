"""Runs ``cgtool check`` on scripts, on the simulated device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cgtool.devices.simulated.cudagraph import check_script
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.jobs.dispatch import hide_gpus
from cgtool.model.failure import CgtoolError
from cgtool.observe import frames
from cgtool.recapture import regions
from tests import forked_workers


@dataclass(frozen=True)
class Outcome:
    """The report of ``cgtool check`` on one script."""

    findings: frozenset[tuple[str, int | None]]
    """Code and line."""
    reasons: tuple[str, ...]
    failure: str | None
    fixes: frozenset[str | None]
    """Fixes that are more specific than the fix of the page."""


def _hide_own_frames() -> None:
    """Nothing is around a script that a user checks: no call chain may go on in the tests."""
    roots = (*frames._roots(), __file__, forked_workers.__file__)
    frames._roots = lambda: roots  # type: ignore[assignment]
    frames.is_internal_file.cache_clear()
    frames._is_internal.clear()


def check(path: Path) -> Outcome:
    """Check a script in this process, which does nothing else."""
    hide_gpus()
    _hide_own_frames()
    regions.strict = True
    os.chdir(path.parent)
    failure = None
    try:
        findings, _ = check_script(str(path), (), lambda _phase: None, ScriptDevice())
    except CgtoolError as error:
        findings = error.failure.findings
        failure = error.failure.message
    return Outcome(
        frozenset(
            (finding.code, finding.frames[0].line if finding.frames else None)
            for finding in findings
        ),
        tuple(finding.reason for finding in findings),
        failure,
        frozenset(finding.fix for finding in findings),
    )
