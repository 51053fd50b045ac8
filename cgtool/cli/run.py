"""Run the command line and turn every way out into an exit code."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from cgtool.cli import streams
from cgtool.cli.group import app
from cgtool.model.failure import CgtoolError, usage


def run() -> int:
    """The exit code; what went wrong is on standard error, and no traceback of ours."""
    if sys.stderr is None:
        # Closed by the caller: what would be said there is said nowhere.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stderr.write("cgtool: standard output is closed: there is nowhere to write to\n")
        return 2
    streams.settle()
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
    try:
        Path.cwd()
    except OSError as error:
        raise usage(
            f"the current folder cannot be told: {error.strerror}",
            why="it was removed, most likely by what ran before",
            fix="cd to a folder that is there",
        ) from error
