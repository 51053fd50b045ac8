"""Standard output and standard error where they end: in a full disk, or a reader that went away."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from cgtool.model.failure import usage

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Ending(io.FileIO):
    """A descriptor that takes what it can. After the first fault the rest is dropped, so that the
    flush at the very end finds none.

    A reader that went away (``| head -1``) has what it wanted: the command goes on, and its exit
    code is what it found. Raises CgtoolError (exit 2) for other faults, where they can be said.
    """

    def __init__(self, descriptor: int, says: str | None) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._says = says
        self._ended = False

    def write(self, data: ReadableBuffer, /) -> int:
        if not self._ended:
            try:
                return super().write(data)
            except BrokenPipeError:
                self._ended = True
            except OSError as error:
                self._ended = True
                if self._says is not None:
                    raise usage(f"{self._says}: {error.strerror}") from None
        return memoryview(data).nbytes


def settle() -> None:
    """Put streams of this kind in the place of Python's own; what else stands there stays."""
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that has no "—" is shown another character, not a fault of ours.
        sys.stdout = _of(sys.stdout, "cannot write to standard output", "replace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _of(sys.stderr, None, "backslashreplace")


def _of(stream: io.TextIOWrapper, says: str | None, errors: str) -> io.TextIOWrapper:
    ending = io.BufferedWriter(_Ending(stream.fileno(), says))
    lines = stream.line_buffering
    return io.TextIOWrapper(ending, stream.encoding, errors, line_buffering=lines)
