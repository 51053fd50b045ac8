"""Why a capture of a recorded program failed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

import msgspec

from cgtool.model.capture import Frames
from cgtool.model.finding import Finding
from cgtool.observe.frames import exception_frames, package_part


def leave_out_our_frames(error: BaseException) -> None:
    """Remove cgtool's frames, which are around the ops of a capture, from a traceback."""
    before = error.__traceback__
    while before is not None:
        following = before.tb_next
        while following is not None and _is_ours(following.tb_frame.f_code.co_filename):
            following = following.tb_next
        before.tb_next = following
        before = following


def _is_ours(file: str) -> bool:
    return package_part(file).startswith("/cgtool/")


def diagnosis_of(
    raised: BaseException,
    ended: Sequence[threading.Thread],
    capturing: Sequence[str],
    phase: str = "capture",
    nested: Frames = (),
) -> Finding | None:
    """The meaning of the error that ended a capture, at the line that raised it, or that began
    another capture inside it (``nested``); None if it is not about the capture."""
    # Slow to import, and most programs never need it.
    from cgtool.detectors.capture_errors import API_ORDER_MISUSE, explain

    with contextlib.suppress(Exception):  # methods of the user's exception may raise
        finding = explain(raised, phase, ended, capturing, has_nested=bool(nested))
        if finding is not None:
            is_nested = bool(nested) and finding.code == API_ORDER_MISUSE
            frames = nested if is_nested else exception_frames(raised)
            return msgspec.structs.replace(finding, frames=frames)
    return None


def has_unknown_cause(diagnosis: Finding) -> bool:
    """Whether the error tells only that some call has ended the capture."""
    from cgtool.detectors.capture_errors import FINALIZER_IN_CAPTURE

    return diagnosis.code == FINALIZER_IN_CAPTURE


def program_error(raised: BaseException) -> Finding | None:
    """The finding behind an exception that has another cause; None if it asks the program to
    end."""
    from cgtool.detectors.capture_errors import own_exception

    if not isinstance(raised, Exception):
        return None
    return msgspec.structs.replace(own_exception(raised), frames=exception_frames(raised))


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]


def error_text(error: BaseException) -> str:
    """``ValueError: no weights at model.py:12``"""
    place = _place(error)
    return first_line(error) + (f" at {place}" if place else "")


def _place(error: BaseException) -> str | None:
    """The user's line that raised an error: ``model.py:12``; None if that is not known."""
    frames = exception_frames(error)
    return f"{os.path.basename(frames[0].file)}:{frames[0].line}" if frames else None  # noqa: PTH119
