"""Why a command ended without a result, as plain data and as an exception."""

from __future__ import annotations

from functools import partial

import msgspec

from cgtool.model.capture import Frame
from cgtool.model.finding import Finding

EXIT_OK = 0
EXIT_FOUND = 1
EXIT_USAGE = 2
EXIT_MACHINE = 3
EXIT_USER_CODE = 4
EXIT_UNKNOWN = 5
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error that the user reads, in four lines: what, where, why, and how to fix it."""

    message: str = msgspec.field(name="what")
    """One sentence: ``model.py:build raised ValueError: ...``. JSON and files name it ``what``."""
    exit_code: int
    """2 wrong use, 3 this machine cannot, 4 the user's code could not be loaded or captured, 5 no
    answer, 70 a defect of cgtool."""
    frames: tuple[Frame, ...] = ()
    """The user's frames, innermost first; never cgtool's own."""
    why: str | None = None
    fix: str | None = None
    phase: str | None = None
    """``load``, ``warm-up``, ``capture forward``, ``capture backward``, ``replay``, ..."""
    findings: tuple[Finding, ...] = ()
    """The causes that have a code; first the one that ended the attempt."""
    uncertain: bool = False
    """A dry run may find another cause: what an error of CUDA means is a guess from the line, and
    what gets no gradient may follow from a branch."""


class CgtoolError(Exception):
    """Raised anywhere below the CLI; the CLI prints the failure and exits with its code."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        """The message, the user's line, why and fix, a line each."""
        failure = self.failure
        frame = next((frame for frame in failure.frames if frame.file), None)
        place = frame and f"{frame.file}:{frame.line} in {frame.function}"
        facts = (("at ", place), ("why: ", failure.why), ("fix: ", failure.fix))
        return "\n".join([failure.message, *(label + text for label, text in facts if text)])


def _error(
    exit_code: int,
    message: str,
    *,
    frames: tuple[Frame, ...] = (),
    why: str | None = None,
    fix: str | None = None,
    phase: str | None = None,
    findings: tuple[Finding, ...] = (),
    uncertain: bool = False,
) -> CgtoolError:
    return CgtoolError(Failure(message, exit_code, frames, why, fix, phase, findings, uncertain))


usage = partial(_error, EXIT_USAGE)
"""Wrong use, a bad file, a bad option: exit 2."""
machine = partial(_error, EXIT_MACHINE)
"""This machine cannot do it: exit 3."""
user_code = partial(_error, EXIT_USER_CODE)
"""The user's code could not be loaded or captured: exit 4."""
cannot_tell = partial(_error, EXIT_UNKNOWN)
"""There is no answer to what was requested: exit 5."""
