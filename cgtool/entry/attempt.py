"""Run the user's code and turn what it raises into one failure with the user's own frames."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator

import torch

from cgtool.entry.workload import Part
from cgtool.model.capture import Frame
from cgtool.model.failure import CgtoolError, user_code
from cgtool.record.frames import exception_frames

Progress = Callable[[str], None]
_SHOWN_LINES = 8


def innermost(error: BaseException) -> BaseException:
    """The first error of a failed capture: the one that users see is raised while unwinding."""
    seen = {id(error)}
    while error.__context__ is not None and not error.__suppress_context__:
        error = error.__context__
        if id(error) in seen:
            break
        seen.add(id(error))
    return error


def _lines(error: BaseException) -> list[str]:
    try:
        return str(error).strip().splitlines()
    except Exception as other:  # a __str__ of the user's
        return [f"(its message raised {type(other).__name__})"]


def first_line(error: BaseException) -> str:
    lines = _lines(error)
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def users_code(
    part: Part, phase: str, meaning: Callable[[str], str | None] = lambda _text: None
) -> Iterator[None]:
    """``meaning`` explains the first line of an error, when it can.

    Raises CgtoolError (exit 4) in place of every Exception.
    """
    try:
        yield
    except CgtoolError:
        raise
    except torch.OutOfMemoryError as error:
        root = innermost(error)
        raise user_code(
            f"{part.name}: the GPU ran out of memory in {phase}",
            frames=exception_frames(root),
            why=first_line(root),
            fix="use a smaller batch, or a device with more free memory",
            phase=phase,
        ) from error
    except Exception as error:
        root = innermost(error)
        if isinstance(root, CgtoolError):
            raise root from error
        text = first_line(root)
        raise user_code(
            f"{part.name} raised {type(root).__name__} in {phase}: {text}",
            frames=exception_frames(root) or exception_frames(error),
            why=meaning(text),
            phase=phase,
        ) from error


def _syntax(who: str, error: SyntaxError, otherwise: tuple[Frame, ...]) -> CgtoolError:
    only = "".join(traceback.TracebackException.from_exception(error).format_exception_only())
    # The first line is the place, which is a frame here; the last is the message.
    source = [line for line in only.splitlines()[:-1] if not line.startswith("  File ")]
    return user_code(
        f"{who} raised {type(error).__name__}: {error.msg}",
        frames=exception_frames(error) or otherwise,
        why="\n".join(source[:_SHOWN_LINES]) or None,
        phase="load",
    )


def load_error(
    who: str,
    error: BaseException,
    *,
    why: str | None = None,
    fix: str | None = None,
    otherwise: tuple[Frame, ...] = (),
) -> CgtoolError:
    """What the user's code raised while it was loaded. ``otherwise`` are the frames to name when
    the traceback has none of the user's."""
    if isinstance(error, CgtoolError):
        return error
    if isinstance(error, SyntaxError):
        return _syntax(who, error, otherwise)
    what = f"{who} raised {type(error).__name__}"
    lines = _lines(error)
    if isinstance(error, SystemExit):
        what = f"{who} ended with sys.exit({error.code!r})"
        fix = fix or "keep what only a script does under: if __name__ == '__main__'"
    elif lines:
        what += f": {lines[0]}"
    if why is None and len(lines) > 1:
        why = "\n".join(lines[1:_SHOWN_LINES])
    if isinstance(error, ModuleNotFoundError) and fix is None:
        fix = f"install it where cgtool runs, {sys.prefix}, or run cgtool from its folder"
    elif isinstance(error, torch.OutOfMemoryError):
        fix = "use a smaller model or batch, or a device with more free memory"
    return user_code(
        what, frames=exception_frames(error) or otherwise, why=why, fix=fix, phase="load"
    )
