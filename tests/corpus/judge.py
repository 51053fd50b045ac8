"""What `check` and `verify` say of an entry of the corpus, and whether that is right."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cgtool.analysis.reports import exit_code, explain_findings, is_hazard
from cgtool.cli.options import WorkerOptions
from cgtool.cli.workers import report_of
from cgtool.model.failure import EXIT_BUG, EXIT_USER_CODE, CgtoolError
from cgtool.model.jobs import VerifyJob, check_job
from cgtool.model.options import CaptureOptions
from tests.corpus.catalog import RAISES, Entry
from tests.forked_workers import in_fork

SECONDS = 120
RIGHT, VERIFIED, ELSEWHERE, MISSED = "right line", "by verify only", "elsewhere", "missed"
CLEAN, ALARM, UNDECIDED = "clean", "false alarm", "cannot tell"
OUTCOMES = (RIGHT, VERIFIED, ELSEWHERE, MISSED, CLEAN, ALARM, UNDECIDED)
GOOD = (RIGHT, CLEAN)


@dataclass
class Said:
    """What one command said of one entry."""

    exit: int
    hazards: list[tuple[str, int | None, str]]
    """Code, line in the entry's file, reason. A failure that has no code is one too, unless it is
    an exception of the code that no finding explains."""

    def at(self, entry: Entry) -> bool:
        return any(entry.is_guilty_line(line) for _code, line, _reason in self.hazards)


@dataclass
class Verdict:
    """What ``check`` and ``verify`` said of one entry, and what that is worth."""

    entry: Entry
    check: Said
    verify: Said

    @property
    def outcome(self) -> str:
        said = (self.check, self.verify)
        if not self.entry.guilty:
            # `verify` exits 5 where it cannot decide, which is not an alarm.
            if all(each.exit == 0 for each in said):
                return CLEAN
            return UNDECIDED if all(each.exit in (0, 5) for each in said) else ALARM
        if self.check.at(self.entry):
            return RIGHT
        if self.verify.at(self.entry):
            return VERIFIED
        return ELSEWHERE if any(each.exit not in (0, 5) for each in said) else MISSED

    @property
    def text(self) -> str:
        """The answer in a few lines, for someone who looks into a wrong one."""
        marks = ", ".join(str(lines.start) for lines in self.entry.guilty) or "none"
        lines = [f"{self.entry.key} ({self.outcome}; guilty line: {marks})"]
        for command, said in (("check", self.check), ("verify", self.verify)):
            lines.append(f"    {command}: exit {said.exit}")
            lines += [f"      {code} at {line}: {reason}" for code, line, reason in said.hazards]
        return "\n".join(lines)


def ask(entry: Entry, device: str | None) -> Verdict:
    """Run the commands, each in a forked worker. What the entry prints is nobody's business."""
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    options = CaptureOptions(device=device, seed=0)
    check = _said(partial(report_of, check_job(entry.spec, options)), entry)
    if entry.is_script:
        return Verdict(entry, check, Said(0, []))
    return Verdict(entry, check, _said(partial(report_of, VerifyJob(entry.spec, options)), entry))


def _said(report: Callable[..., Any], entry: Entry) -> Said:
    try:
        answer = report(WorkerOptions(timeout=SECONDS, quiet=True))
    except CgtoolError as error:
        failure = error.failure
        is_explained = failure.exit_code != EXIT_USER_CODE or entry.key in RAISES
        places = [(failure.message, list(failure.frames))] if is_explained else []
        places += [(finding.code, list(finding.frames)) for finding in failure.findings]
        hazards = [(code, _line(frames, entry), failure.message) for code, frames in places]
        return Said(failure.exit_code, hazards)
    except RuntimeError as bug:
        return Said(EXIT_BUG, [("bug", None, str(bug).strip().splitlines()[-1])])
    found = [finding for finding in explain_findings(answer.findings) if is_hazard(finding)]
    hazards = [
        (each.code, _line([*each.frames, *each.forward], entry), each.reason) for each in found
    ]
    code = exit_code(answer) if answer.command == "verify" else int(bool(found))
    return Said(code or int(bool(found)), hazards)


def _line(frames: Iterable[Any], entry: Entry) -> int | None:
    """The innermost line in the entry's own file."""
    lines = (frame.line for frame in frames if Path(frame.file).name == entry.file.name)
    return next(lines, None)


def judged(
    chosen: list[Entry], device: str | None = "simulated", jobs: int = 2
) -> Iterator[Verdict]:
    """In the order of ``chosen``, each in a process of its own."""

    def judge(entry: Entry) -> Verdict:
        return in_fork(ask, entry, device, timeout=3 * SECONDS)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(judge, chosen)
