"""Replays over time, from the counters of journals."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from cgtool.cli.follow import Progress
from cgtool.model.journal import COUNTER, JournalWriter
from cgtool.model.program import Settings
from cgtool.worker.program import HOME, run_program

PAUSE_NS = 50_000_000


def test_the_moments_before_and_after_each_change(tmp_path: Path) -> None:
    writer, progress = JournalWriter(tmp_path, "1-1"), Progress()
    journal = writer.journal
    chunk, offset = writer.counter(0)
    for moment, count in enumerate((0, 0, 3, 3, 3, 8, 9, 9, 9)):
        COUNTER.pack_into(chunk, offset, count, 0, 0, 0)
        progress.look(PAUSE_NS * moment, {journal.log: journal.counters()})
    seen = [(time_ns // PAUSE_NS, count) for time_ns, count in progress.of(journal.log, 0)]
    assert seen == [(2, 3), (4, 3), (5, 8), (6, 9)]
    assert list(progress.of(journal.log, 1)) == []
    assert list(progress.of(tmp_path / "2-2.log", 0)) == []


def test_few_moments_are_kept_of_a_long_program(tmp_path: Path) -> None:
    writer, progress = JournalWriter(tmp_path, "1-1"), Progress()
    journal = writer.journal
    chunk, offset = writer.counter(0)
    for moment in range(1000):
        COUNTER.pack_into(chunk, offset, moment, 0, 0, 0)
        progress.look(PAUSE_NS * moment, {journal.log: journal.counters()})
    moments = list(progress.of(journal.log, 0))
    assert 50 <= len(moments) <= 100
    assert all(time_ns == PAUSE_NS * count for time_ns, count in moments)
    assert moments[-1][0] >= 980 * PAUSE_NS


def test_what_follows_a_program_is_no_part_of_its_time(tmp_path: Path) -> None:
    def meanwhile(ended: threading.Event) -> None:
        ended.wait()
        time.sleep(2)

    command, settings = (
        [sys.executable, "-S", "-c", ""],
        Settings(str(HOME), str(tmp_path), *[""] * 5),
    )
    status, wall_ns = run_program(command, settings, None, meanwhile)
    assert status == 0
    assert wall_ns < 2_000_000_000
