"""What ``cgtool run`` sees of a program while it runs: it reads the journals again and again, from
outside, so it costs the program nothing."""

from __future__ import annotations

import contextlib
import math
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from cgtool.model.journal import STACKS_WANTED, Command, Counters, read_journals
from cgtool.model.records import Capturing, Entering

_FIRST_PAUSE_NS = 50_000_000
"""Between two moments of a program that has just begun."""
_MOST = 100
"""Moments that are kept. Where there are more, every second one is left out, and the pauses become
twice as long."""
_ANSWER_S = 5
"""How long the processes have to write their stacks; one whose thread holds the GIL cannot."""

Seen = dict[Path, Counters]
"""By the log of a journal: differs if the process recorded or replayed anything meanwhile."""


def follow(
    folder: Path,
    command: Command,
    progress: Progress,
    watchdog_s: float | None,
    ended: threading.Event,
) -> None:
    """Until the program has ended: import what reads the journals, which takes a tenth of a second,
    compile the recorder in C++ where it is missing, note replays, and report when nothing moves.

    ``folder``: of the journals. ``watchdog_s``: of ``--watchdog``.
    """
    from cgtool.worker.recorder_build import RecorderBuild

    # What fails here fails again when it is needed, and is reported then.
    with contextlib.suppress(Exception):
        import cgtool.analysis.ledger
        import cgtool.render.ledger_table  # noqa: F401
    build = RecorderBuild()
    watchdog = None if watchdog_s is None else Watchdog(folder, command, watchdog_s)
    longest = math.inf if watchdog_s is None else min(watchdog_s / 4, 1.0)
    with contextlib.suppress(OSError):  # the folder was removed: reported at the end
        while not ended.wait(min(progress.pause_ns / 1e9, longest)):
            build.look(folder)
            seen = _seen(folder)
            progress.look(time.time_ns(), seen)
            if watchdog is not None:
                watchdog.look(seen, ended)
        build.look(folder)


def _seen(folder: Path) -> Seen:
    return {journal.log: journal.counters() for journal in read_journals(folder)}


class Progress:
    """How many replays each graph had at moments while its program ran."""

    def __init__(self) -> None:
        self.pause_ns = _FIRST_PAUSE_NS
        self._moments: list[tuple[int, dict[tuple[Path, int], int]]] = []

    def look(self, time_ns: int, seen: Seen) -> None:
        """Note how many replays there are, at this time of the system clock. Nothing is noted if
        the last moment was less than ``pause_ns`` ago."""
        if self._moments and abs(time_ns - self._moments[-1][0]) < self.pause_ns:
            return
        counts = {
            (log, number): count
            for log, counters in seen.items()
            for number, (count, *_) in enumerate(counters.graphs)
            if count
        }
        self._moments.append((time_ns, counts))
        if len(self._moments) > _MOST:
            del self._moments[1::2]
            self.pause_ns *= 2

    def of(self, log: Path, number: int) -> Iterator[tuple[int, int]]:
        """Times of the system clock (ns), and how many replays there were of a graph: before and
        after each change. ``log``: of the journal of its process."""
        seen = [(time_ns, counts.get((log, number), 0)) for time_ns, counts in self._moments]
        is_told = False
        for before, after in pairwise(seen):
            if before[1] == after[1]:
                is_told = False
                continue
            if not is_told and before[1]:
                yield before
            yield after
            is_told = True


class Watchdog:
    """Reports each time that no process of a program has captured, replayed or recorded anything
    for so long, once one is about to capture. The program goes on."""

    def __init__(self, folder: Path, command: Command, seconds: float) -> None:
        self._folder, self._command, self._seconds = folder, command, seconds
        self._seen: Seen = {}
        self._moved = time.monotonic()
        self._has_loaded = self._is_reported = False

    def look(self, seen: Seen, ended: threading.Event) -> None:
        """Report if nothing has moved for so long. ``ended``: whether the program has."""
        self._has_loaded = self._has_loaded or _has_loaded(self._folder)
        if not self._has_loaded or seen != self._seen:
            self._seen, self._moved, self._is_reported = seen, time.monotonic(), False
        elif not self._is_reported and time.monotonic() - self._moved >= self._seconds:
            (self._folder / STACKS_WANTED).touch()
            asked = time.monotonic()
            while time.monotonic() - asked < _ANSWER_S and not self._have_answered(seen):
                if ended.wait(_ANSWER_S / 20):
                    break
            if not ended.is_set():
                self._report()
            self._seen, self._is_reported = _seen(self._folder), True

    def _have_answered(self, before: Seen) -> bool:
        now = _seen(self._folder)
        return all(
            log not in now or now[log].appended > each.appended for log, each in before.items()
        )

    def _report(self) -> None:
        from cgtool.analysis.ledger import merge_folder
        from cgtool.analysis.ranks.report import ranks_report
        from cgtool.cli.output import show_table
        from cgtool.render.ranks_table import render

        hang = f"nothing was captured or replayed for {self._seconds:g} s; the program goes on"
        captures = [merge_folder(self._command, self._folder)]
        report = ranks_report(captures, shlex.join(self._command.command), hang=hang)
        sys.stderr.write("\n")
        show_table(render(report), None, stderr=True)


def _has_loaded(folder: Path) -> bool:
    """Before its first capture, a program may load for minutes."""
    records = (record for journal in read_journals(folder) for record in journal.records())
    return any(isinstance(record, Entering | Capturing) for record in records)
