"""What is written is read back, whole or not at all."""

from __future__ import annotations

import operator
import os
import stat
import tempfile
import zipfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings

from cgtool.model import capture_file
from cgtool.model.capture import SCHEMA_VERSION, Capture
from cgtool.model.capture_file import read, read_raw, write
from cgtool.model.failure import CgtoolError
from cgtool.model.files import atomic
from cgtool.model.journal import Journal, JournalWriter
from cgtool.model.ledger import LedgerGraph
from cgtool.model.records import GraphEnded, Lost, Unseen
from tests.builders import hostile, nested, program, small
from tests.strategies import captures


@pytest.mark.parametrize("make", [small, nested], ids=["small", "nested"])
def test_a_capture_is_read_back_as_it_was(tmp_path: Path, make: object) -> None:
    capture = make()  # type: ignore[operator]
    write(tmp_path / "a.cgt", capture, {"0.dot": "digraph { a -> b }\n"})
    assert read(tmp_path / "a.cgt") == capture
    assert read_raw(tmp_path / "a.cgt", "0.dot") == "digraph { a -> b }\n"


@settings(max_examples=60)
@given(captures())
def test_every_sound_capture_is_read_back_as_it_was(capture: Capture) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "a.cgt", capture)
        assert read(Path(folder) / "a.cgt") == capture


def test_equal_captures_make_equal_files(tmp_path: Path) -> None:
    write(tmp_path / "a.cgt", small(), {"0.dot": "x"})
    write(tmp_path / "b.cgt", small(), {"0.dot": "x"})
    assert (tmp_path / "a.cgt").read_bytes() == (tmp_path / "b.cgt").read_bytes()


def test_equal_kernels_and_edges_of_a_program_are_in_memory_once(tmp_path: Path) -> None:
    """2,000 graphs of 300 nodes would take twice the memory."""
    capture = program([LedgerGraph(0, at, "Engine.capture", graph=at) for at in range(2)])
    write(tmp_path / "a.cgt", capture, {"0.dot": ""})
    first, second = read(tmp_path / "a.cgt").graphs
    kernels = [node.kernel for node in first.nodes if node.kernel is not None]
    others = [node.kernel for node in second.nodes if node.kernel is not None]
    assert kernels
    assert all(map(operator.is_, kernels, others))
    assert all(map(operator.is_, first.edges, second.edges))


def test_a_log_without_its_end(tmp_path: Path) -> None:
    log, whole = tmp_path / "1-1.log", [Unseen(7, 0), GraphEnded(8, 0, "freed")]
    journal = JournalWriter(tmp_path, "1-1")
    journal.append(whole[0])
    first = log.stat().st_size
    journal.append(whole[1])
    data = log.read_bytes()
    assert list(Journal(log).records()) == whole
    for cut in range(first + 1, len(data)):
        log.write_bytes(data[:cut])
        before, lost = Journal(log).records()
        assert before == whole[0]
        assert isinstance(lost, Lost)
    log.write_bytes(b"\xff" * 5)
    (lost,) = Journal(log).records()
    assert isinstance(lost, Lost)


def test_names_that_are_not_utf8_are_kept_as_escapes(tmp_path: Path) -> None:
    write(tmp_path / "a.cgt", hostile())
    streams = {stream.name for stream in read(tmp_path / "a.cgt").streams}
    assert "\\ud800 lone surrogate" in streams
    assert "\x00\x01\x1b[31mred\x7f" in streams


def altered(path: Path, part: str, change: object) -> Path:
    """A copy of a file with one part's JSON changed."""
    target = path.with_name("altered.cgt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == part:
                value = msgspec.json.decode(data)
                change(value)  # type: ignore[operator]
                data = msgspec.json.encode(value)
            new.writestr(name, data)
    return target


def test_a_newer_schema_is_refused_with_the_remedy(tmp_path: Path) -> None:
    write(tmp_path / "a.cgt", small(), {"0.dot": ""})
    path = altered(
        tmp_path / "a.cgt", "manifest.json", lambda m: m.update(schema_version=SCHEMA_VERSION + 1)
    )
    with pytest.raises(CgtoolError) as caught:
        read(path)
    failure = caught.value.failure
    assert failure.exit_code == 2
    assert "written by a newer cgtool" in failure.message
    assert f"up to {SCHEMA_VERSION}" in failure.message
    assert failure.fix == "upgrade cgtool"


def test_a_newer_schema_may_have_parts_that_this_one_does_not_know(tmp_path: Path) -> None:
    write(tmp_path / "a.cgt", small(), {"0.dot": ""})
    path = altered(tmp_path / "a.cgt", "manifest.json", lambda m: m.update(schema_version=99))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("timeline.json", "{}")
    with pytest.raises(CgtoolError, match="newer cgtool"):
        read(path)


def test_unknown_fields_are_ignored_and_missing_ones_have_defaults(tmp_path: Path) -> None:
    write(tmp_path / "a.cgt", small(), {"0.dot": ""})
    path = altered(tmp_path / "a.cgt", "graphs/1.json", lambda g: g.update(future=1))
    assert read(path) == small()
    path = altered(tmp_path / "a.cgt", "graphs/0.json", lambda g: g.pop("capture_ns"))
    assert read(path).graphs[0].capture_ns is None


def test_an_error_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.cgt"
    path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt), atomic(path) as temporary:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CgtoolError, match=r"cannot write .*: No space left") as caught:  # noqa: SIM117
        with atomic(tmp_path / "a.cgt"):
            raise OSError(28, os.strerror(28))
    assert caught.value.failure.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("nowhere/a.cgt", "No such file or directory"),
        ("folder", "it is a directory"),
        ("file/a.cgt", "Not a directory"),
        ("pipe", "it is a device or a pipe"),
        ("n" * 300 + ".cgt", "File name too long"),
    ],
)
def test_an_unwritable_place_is_one_sentence(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CgtoolError, match=reason) as caught:
        write(tmp_path / place, small())
    assert caught.value.failure.exit_code == 2
    assert sorted(tmp_path.iterdir()) == before


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.cgt").symlink_to(tmp_path / "there" / "a.cgt")
    write(tmp_path / "link.cgt", small(), {"0.dot": ""})
    assert (tmp_path / "link.cgt").is_symlink()
    assert read(tmp_path / "there" / "a.cgt") == small()


def test_the_file_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "a.cgt", small())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.cgt").stat().st_mode) == 0o640


def test_bounds_leave_room_for_a_million_nodes() -> None:
    # 100,000 realistic nodes take 28 MB of JSON (benchmarks/offline_100k.py).
    assert capture_file.MAX_PART_BYTES > 280e6
    assert capture_file.MAX_TOTAL_BYTES >= 4 * capture_file.MAX_PART_BYTES
