"""Replays over time, from the counters of journals."""

from __future__ import annotations

from pathlib import Path

from cgtool.cli.run import Progress
from cgtool.model.journal import COUNTER, Began, JournalWriter, read_journals


def test_the_moments_before_and_after_each_change(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "1-1")
    journal.append(Began(0, 1, 0, (), forked=False))
    progress = Progress(tmp_path)
    chunk, offset = journal.counter(0)
    for moment, count in enumerate((0, 0, 3, 3, 3, 8, 9, 9, 9)):
        COUNTER.pack_into(chunk, offset, count, 0, 0, 0)
        progress.look(10 * moment)
    (log,) = (each.log for each in read_journals(tmp_path))
    assert list(progress.of(log, 0)) == [(20, 3), (40, 3), (50, 8), (60, 9)]
    assert list(progress.of(log, 1)) == []
    assert list(progress.of(tmp_path / "2-2.log", 0)) == []


def test_few_moments_are_kept_of_a_long_program(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "1-1")
    journal.append(Began(0, 1, 0, (), forked=False))
    progress = Progress(tmp_path)
    chunk, offset = journal.counter(0)
    for moment in range(1000):
        COUNTER.pack_into(chunk, offset, moment, 0, 0, 0)
        progress.look(moment)
    (log,) = (each.log for each in read_journals(tmp_path))
    moments = list(progress.of(log, 0))
    assert 50 <= len(moments) <= 100
    assert all(time_ns == count for time_ns, count in moments)
    assert moments[-1][0] >= 980
