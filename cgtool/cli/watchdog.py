"""``cgtool run --watchdog``: says what each process does when nothing moves any more."""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from cgtool.model.capture import created_now
from cgtool.model.journal import STACKS_WANTED, Capturing, Command, Moving, read_journals, read_lost

_ANSWER_S = 3.0
"""How long the processes have to write their stacks; one whose thread holds the GIL cannot."""
_QUIET_S = 0.5


@contextlib.contextmanager
def watching(folder: Path, command: Command, seconds: float | None) -> Iterator[None]:
    """While entered, report each time that no process of a program has captured, replayed or
    recorded anything for so long, from its first capture on. The program goes on. ``folder``: of
    its journals."""
    if seconds is None:
        yield
        return
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(folder, command, seconds, ended))
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()


def _watch(folder: Path, command: Command, seconds: float, ended: threading.Event) -> None:
    moving, moved, is_reported = Moving(folder), time.monotonic(), False
    has_captured = False
    with contextlib.suppress(OSError):  # the folder was removed: reported at the end
        while not ended.wait(min(seconds / 4, 1.0)):
            has_captured = has_captured or _has_captured(folder)
            if moving.look() or not has_captured:
                moved, is_reported = time.monotonic(), False
            elif not is_reported and time.monotonic() - moved >= seconds:
                _ask(folder, moving, ended)
                if not ended.is_set():
                    _report(folder, command, seconds)
                is_reported = True


def _has_captured(folder: Path) -> bool:
    """Before, a program may load for minutes."""
    records = (record for journal in read_journals(folder) for record in journal.records())
    return any(isinstance(record, Capturing) for record in records)


def _ask(folder: Path, moving: Moving, ended: threading.Event) -> None:
    """Have the processes write their stacks, and wait for that."""
    wanted = folder / STACKS_WANTED
    wanted.unlink(missing_ok=True)
    wanted.touch()
    asked = answered = time.monotonic()
    while not ended.wait(0.1):
        now = time.monotonic()
        if moving.look():
            answered = now
        if now - asked > _ANSWER_S or (answered > asked and now - answered > _QUIET_S):
            return


def _report(folder: Path, command: Command, seconds: float) -> None:
    from cgtool.analysis.ledger import merge
    from cgtool.analysis.ranks.report import hang_report
    from cgtool.cli.output import show_table
    from cgtool.render.ranks_table import render_hang

    capture = merge(
        command,
        read_journals(folder),
        read_lost(folder),
        wall_ns=time.time_ns() - command.started_ns,
        status=None,
        created=created_now(),
    )
    report = hang_report(capture, shlex.join(command.command), seconds)
    sys.stderr.write("\n")
    show_table(render_hang(report), None, stderr=True)
