"""Runs the user's program for ``cgtool run``: its own process, its own streams, its own signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import cgtool
from cgtool.model.failure import usage
from cgtool.model.program import VARIABLE, Settings

_SITE = Path(cgtool.__file__).parent / "recording" / "site"
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
_BY_SIGNAL = 128


def run_program(command: Sequence[str], folder: Path, device: str) -> int:
    """Run a command to its end, its Python processes recorded into ``folder``.

    Returns its exit status as a shell does: 128 and its number for a signal. Ctrl-C is for the
    program, as it is without cgtool. Raises CgtoolError (exit 2) if it cannot be started.
    """
    home = str(Path(cgtool.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (str(_SITE), os.environ.get("PYTHONPATH"))))
    settings = Settings(home, str(folder), device)
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: settings.text}
    sys.stdout.flush()
    sys.stderr.flush()
    with _interrupts_ignored():
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            raise usage(f"cannot run {command[0]}: {error.strerror}") from None
        with _passing_on(process):
            status = process.wait()
    return status if status >= 0 else _BY_SIGNAL - status


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl-C goes to the program, which is in the same group; its report is still written."""
    # A handler, because a signal that is ignored would be ignored in the program too.
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Signals that end this process go to the program instead."""
    before = {
        number: signal.signal(number, lambda number, _frame: process.send_signal(number))
        for number in _PASSED_ON
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
