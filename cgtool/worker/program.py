"""Runs the user's program for ``cgtool run``: its own process, its own streams, its own signals."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import cgtool
from cgtool.model.failure import usage
from cgtool.model.journal import write_ready
from cgtool.model.program import VARIABLE, Settings
from cgtool.worker.output import PassedOn

HOME = Path(cgtool.__file__).parent.parent
"""The folder that holds the package cgtool."""
_SITE = HOME / "cgtool" / "recorder" / "site"
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Ctrl-C and Ctrl-\\: the terminal sends them to the program as well."""
_BY_SIGNAL = 128


def is_running(pid: int) -> bool:
    """Whether a process of this machine runs; one that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except PermissionError:
        return True
    except OSError:
        return False
    return state != "Z"


def run_program(
    command: Sequence[str],
    settings: Settings,
    ready_output: re.Pattern[str] | None,
    meanwhile: Callable[[threading.Event], object],
) -> tuple[int, int]:
    """Run a command to its end, its Python processes recorded. ``ready_output``: of the option.
    ``meanwhile`` is called on a thread once it has started, with what is set when it has ended, and
    is waited for.

    Returns its exit status as a shell does, 128 and its number for a signal, and how long it took
    (ns). Ctrl-C is for the program, as it is without cgtool. Raises CgtoolError (exit 2) if it
    cannot be started.
    """
    path = os.pathsep.join(filter(None, (str(_SITE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: settings.text}
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    with _signals() as pass_on_to:
        try:
            output = PassedOn(ready_output, partial(write_ready, Path(settings.folder)))
            began_ns = time.perf_counter_ns()
            with output as (stdout, stderr):
                process = subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise usage(f"cannot run {command[0]}: {reason}") from None
        pass_on_to(process)
        ended = threading.Event()
        thread = threading.Thread(target=meanwhile, args=(ended,))
        thread.start()
        try:
            status = process.wait()
            output.wait()
            wall_ns = time.perf_counter_ns() - began_ns
        finally:
            ended.set()
            thread.join()
    return status if status >= 0 else _BY_SIGNAL - status, wall_ns


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Signals that would end this process go to the program, and its report is still written. To
    be called with the program's process, which then gets those that came before it."""
    early: list[int] = []
    pass_on: Callable[[int], None] = early.append

    def pass_on_to(process: subprocess.Popen[bytes]) -> None:
        nonlocal pass_on
        pass_on = process.send_signal
        for number in early:
            pass_on(number)

    # Handlers, because a signal that is ignored would be ignored in the program too.
    before = {
        **{each: signal.signal(each, lambda each, _: pass_on(each)) for each in _PASSED_ON},
        **{each: signal.signal(each, lambda *_: None) for each in _FROM_THE_TERMINAL},
    }
    try:
        yield pass_on_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
