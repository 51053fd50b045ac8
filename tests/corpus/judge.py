"""Compares `check` and `verify` with the marks of a program of the corpus."""

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
from cgtool.model.failure import EXIT_BUG, EXIT_FOUND, EXIT_UNKNOWN, EXIT_USER_CODE, CgtoolError
from cgtool.model.jobs import VerifyJob, check_job
from cgtool.model.options import CaptureOptions
from tests.corpus.catalog import HERE, Program
from tests.forked_workers import in_fork

SECONDS = 120
AT_LINE, ELSEWHERE, MISSED = "at the line", "elsewhere", "missed"
CLEAN, ALARM, UNDECIDED = "clean", "false alarm", "cannot tell"
GOOD = (ELSEWHERE, AT_LINE, CLEAN)
WRONG = HERE / "wrong.txt"
"""Programs that are known to be judged wrongly, a line ``NAME: OUTCOME`` each.

`benchmarks/corpus.py --record` writes it.
"""


@dataclass
class Answer:
    """The findings of one command on one program."""

    exit: int
    hazards: list[tuple[str, int | None, str]]
    """Code, line in the program's file, reason. A failure that has no code is one too, unless it is
    an exception of the program that no finding explains."""

    @property
    def finds_something(self) -> bool:
        """Whether there is an error or a warning; a crash of cgtool is none."""
        return self.exit == EXIT_FOUND or (self.exit == EXIT_USER_CODE and bool(self.hazards))


@dataclass
class Verdict:
    """The findings of ``check`` and ``verify`` on one program, and the outcome."""

    program: Program
    check: Answer
    verify: Answer

    @property
    def outcome(self) -> str:
        answers, exits = (self.check, self.verify), {self.check.exit, self.verify.exit}
        if not self.program.is_faulty:
            # `verify` exits 5 where it cannot decide, which is not an alarm.
            return CLEAN if exits == {0} else UNDECIDED if exits <= {0, EXIT_UNKNOWN} else ALARM
        if not any(answer.finds_something for answer in answers):
            return MISSED
        lines = {line for _code, line, _reason in self.check.hazards}
        return AT_LINE if lines & self.program.marked_lines else ELSEWHERE

    @property
    def is_right(self) -> bool:
        return self.outcome in GOOD

    @property
    def text(self) -> str:
        """The answer in a few lines, for someone who looks into a wrong one."""
        marks = ", ".join(f"{mark.code} at {mark.line}" for mark in self.program.marks) or "none"
        lines = [f"{self.program.name}: {self.outcome} (marks: {marks})"]
        for command, answer in (("check", self.check), ("verify", self.verify)):
            lines.append(f"    {command}: exit {answer.exit}")
            lines += [f"      {code} at {line}: {reason}" for code, line, reason in answer.hazards]
        return "\n".join(lines)


def known_wrong() -> dict[str, str]:
    """By the name of the program, the outcome that is wrong."""
    lines = WRONG.read_text().splitlines()
    return dict(tuple(line.split(": ", 1)) for line in lines)


def judge(program: Program, device: str | None) -> Verdict:
    """Run the commands, each in a forked worker. What the program prints is nobody's business."""
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    options = CaptureOptions(device=device, seed=0)
    check = _answer(partial(report_of, check_job(program.spec, options)), program)
    verify = Answer(0, [])
    if not program.is_script:
        verify = _answer(partial(report_of, VerifyJob(program.spec, options)), program)
    return Verdict(program, check, verify)


def _answer(report: Callable[..., Any], program: Program) -> Answer:
    try:
        answer = report(WorkerOptions(timeout=SECONDS, quiet=True))
    except CgtoolError as error:
        failure = error.failure
        is_explained = failure.exit_code != EXIT_USER_CODE
        places = [(failure.message, list(failure.frames))] if is_explained else []
        places += [(finding.code, list(finding.frames)) for finding in failure.findings]
        hazards = [(code, _line(frames, program), failure.message) for code, frames in places]
        return Answer(failure.exit_code, hazards)
    except RuntimeError as bug:
        return Answer(EXIT_BUG, [("bug", None, str(bug).strip().splitlines()[-1])])
    found = [finding for finding in explain_findings(answer.findings) if is_hazard(finding)]
    hazards = [
        (each.code, _line([*each.frames, *each.forward], program), each.reason) for each in found
    ]
    code = exit_code(answer) if answer.command == "verify" else int(bool(found))
    return Answer(code or int(bool(found)), hazards)


def _line(frames: Iterable[Any], program: Program) -> int | None:
    """The innermost line in the program's own file."""
    lines = (frame.line for frame in frames if Path(frame.file).name == program.file.name)
    return next(lines, None)


def verdicts(
    chosen: list[Program], device: str | None = "simulated", jobs: int = 2
) -> Iterator[Verdict]:
    """In the order of ``chosen``, each made in a process of its own."""

    def judged(program: Program) -> Verdict:
        return in_fork(judge, program, device, timeout=3 * SECONDS)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(judged, chosen)
