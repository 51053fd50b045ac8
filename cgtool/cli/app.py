"""The ``cgtool`` command: the command line is run, and every way out becomes an exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def main() -> None:
    """Run the command line. Every way out is an exit code; no traceback of ours is shown."""
    try:
        code = run()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def run() -> int:
    """The exit code; what went wrong is on standard error, and no traceback of ours."""
    # Imported here: Ctrl-C while a module is read must be as quiet as any other.
    from cgtool.cli.group import app
    from cgtool.model.failure import CgtoolError

    if sys.stderr is None:
        # Closed by the caller: nothing can be said there.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stderr.write("cgtool: standard output is closed\n")
        return 2
    replace_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As Ctrl-C: the worker is ended and no temporary file stays.
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        try:
            _check_folder()
            app()
        finally:
            sys.stdout.flush()
    except CgtoolError as error:
        from cgtool.cli.output import show_failure

        show_failure(error.failure)
        return error.failure.exit_code
    except Exception as error:
        from cgtool.cli.output import show_bug

        show_bug(error)
        return 70
    return 0


def _check_folder() -> None:
    """Raises CgtoolError (exit 2) where no relative name means anything."""
    from cgtool.model.failure import usage

    try:
        Path.cwd()
    except OSError as error:
        raise usage(
            f"the current folder cannot be read: {error.strerror}",
            why="it was removed, most likely by an earlier command",
            fix="cd to a folder that exists",
        ) from error


# --- standard output and standard error


class _DroppingFile(io.FileIO):
    """A descriptor that takes what it can. After the first fault the rest is dropped, so that the
    flush at the very end finds none.

    A reader that went away (``| head -1``) has what it wanted: the command goes on, and its exit
    code is its result. Raises CgtoolError (exit 2) with ``message`` for other faults (a full disk).
    """

    def __init__(self, descriptor: int, message: str | None) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._message = message
        self._ended = False

    def write(self, data: ReadableBuffer, /) -> int:
        if not self._ended:
            try:
                return super().write(data)
            except BrokenPipeError:
                self._ended = True
            except OSError as error:
                from cgtool.model.failure import usage

                self._ended = True
                if self._message is not None:
                    raise usage(f"{self._message}: {error.strerror}") from None
        return memoryview(data).nbytes


def replace_streams() -> None:
    """Let Python's own streams end quietly; a stream that somebody else put there stays."""
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that has no "—" is shown another character, not a fault of ours.
        sys.stdout = _dropping(sys.stdout, "cannot write to standard output", "replace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _dropping(sys.stderr, None, "backslashreplace")


def _dropping(stream: io.TextIOWrapper, message: str | None, errors: str) -> io.TextIOWrapper:
    buffer = io.BufferedWriter(_DroppingFile(stream.fileno(), message))
    return io.TextIOWrapper(buffer, stream.encoding, errors, line_buffering=stream.line_buffering)


if __name__ == "__main__":
    main()
