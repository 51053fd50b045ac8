"""Run the user's code and turn what it raises into one failure with the user's own frames."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from cgtool.entry.workload import Part
from cgtool.model.failure import CgtoolError, user_code
from cgtool.record.frames import exception_frames

Progress = Callable[[str], None]


def innermost(error: BaseException) -> BaseException:
    """The first error of a failed capture: the one that users see is raised while unwinding."""
    while error.__context__ is not None and not error.__suppress_context__:
        error = error.__context__
    return error


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


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
