"""The log of a recorded process, written to and read."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cgtool.model import journal as journal_module
from cgtool.model.journal import Journal, JournalWriter, read_journals
from cgtool.model.records import Lost, Skipped


def reasons(folder: Path) -> list[str]:
    (journal,) = read_journals(folder)
    return [record.reason for record in journal.records() if isinstance(record, Lost | Skipped)]


def test_records_of_all_sizes_are_read_as_they_were_written(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "1-1")
    written = []
    for size in (1, 3, 5000, 1, 200_000, 70_000, 0, *range(1500)):
        written += ["x" * size, str(size)]
        assert journal.append(Lost(written[-2]), Skipped(written[-1]))
    assert reasons(tmp_path) == written


def test_a_log_whose_end_was_not_written(tmp_path: Path) -> None:
    JournalWriter(tmp_path, "1-1").append(Lost("first"), Skipped("second"))
    log = tmp_path / "1-1.log"
    whole = log.read_bytes().rstrip(b"\0")
    log.write_bytes(whole[:-3])
    first, second = Journal(log).records()
    assert isinstance(first, Lost)
    assert first.reason == "first"
    assert isinstance(second, Lost)
    assert "incomplete" in second.reason


@pytest.fixture
def small_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", range(9))
def test_a_log_that_ends_with_the_room(room: int, tmp_path: Path) -> None:
    JournalWriter(tmp_path, "1-1").append(Lost("first"))
    log = tmp_path / "1-1.log"
    log.write_bytes(log.read_bytes().rstrip(b"\0") + bytes(room))
    assert reasons(tmp_path) == ["first"]


@pytest.mark.usefixtures("small_files")
def test_where_no_memory_can_be_mapped_records_are_written_while_there_is_room(
    tmp_path: Path,
) -> None:
    journal = JournalWriter(tmp_path, "1-1")
    written = [journal.append(Lost("x" * 300)) for _ in range(10)]
    assert written == [True] * 6 + [False] * 4
    assert journal.append(Lost("short"))
    assert reasons(tmp_path) == ["x" * 300] * 6 + ["short"]


def test_a_signal_handler_that_raises_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalWriter(tmp_path, "1-1")
    put, interrupted = journal_module._put, []

    def interrupt(*arguments: Any) -> None:
        if not interrupted:
            interrupted.append(arguments)
            raise KeyboardInterrupt
        put(*arguments)

    monkeypatch.setattr(journal_module, "_put", interrupt)
    with pytest.raises(KeyboardInterrupt):
        journal.append(Lost("first"))
    journal.append(Lost("second"))
    assert reasons(tmp_path) == ["first", "second"]


def test_a_forked_process_has_a_log_of_its_own(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "1-1")
    journal.append(Lost("before"))
    child = os.fork()
    if child == 0:
        journal.renew("2-2")
        journal.append(Lost("of the child"))
        os._exit(0)
    os.waitpid(child, 0)
    journal.append(Lost("after"))
    parent, forked = read_journals(tmp_path)
    assert [record.reason for record in parent.records() if isinstance(record, Lost)] == [
        "before", "after",
    ]  # fmt: skip
    assert [record.reason for record in forked.records() if isinstance(record, Lost)] == [
        "of the child",
    ]  # fmt: skip
