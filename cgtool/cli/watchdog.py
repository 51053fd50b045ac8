"""``cgtool run --watchdog``: says what each process does when nothing moves any more."""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from cgtool.model.capture import Capture, created_now
from cgtool.model.collector import CollectorPaused
from cgtool.model.journal import (
    STACKS_WANTED,
    Capturing,
    Command,
    Counters,
    read_journals,
    read_lost,
)

_ANSWER_S = 1.5
"""How long the processes have to write their stacks; one whose thread holds the GIL cannot."""


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
    seen, moved, is_reported, has_captured = _recorded(folder), time.monotonic(), False, False
    with contextlib.suppress(OSError):  # the folder was removed: reported at the end
        while not ended.wait(min(seconds / 4, 1.0)):
            has_captured = has_captured or _has_captured(folder)
            if not has_captured or _recorded(folder) != seen:
                seen, moved, is_reported = _recorded(folder), time.monotonic(), False
            elif not is_reported and time.monotonic() - moved >= seconds:
                (folder / STACKS_WANTED).touch()
                if not ended.wait(_ANSWER_S):
                    _report(folder, command, seconds)
                seen, is_reported = _recorded(folder), True


def _recorded(folder: Path) -> list[Counters]:
    """Differs if anything was recorded meanwhile."""
    return [journal.counters() for journal in read_journals(folder)]


def _has_captured(folder: Path) -> bool:
    """Before, a program may load for minutes."""
    records = (record for journal in read_journals(folder) for record in journal.records())
    return any(isinstance(record, Capturing) for record in records)


def recorded(folder: Path, command: Command) -> Capture:
    """What was recorded of a command until now. ``folder``: of its journals."""
    from cgtool.analysis.ledger import merge

    wall_ns = time.time_ns() - command.started_ns
    journals, lost = read_journals(folder), read_lost(folder)
    with CollectorPaused():
        return merge(command, journals, lost, wall_ns=wall_ns, status=None, created=created_now())


def _report(folder: Path, command: Command, seconds: float) -> None:
    from cgtool.analysis.ranks.report import ranks_report
    from cgtool.cli.output import show_table
    from cgtool.render.ranks_table import render

    hang = f"nothing was captured or replayed for {seconds:g} s; the program goes on"
    report = ranks_report([recorded(folder, command)], shlex.join(command.command), hang=hang)
    sys.stderr.write("\n")
    show_table(render(report), None, stderr=True)
