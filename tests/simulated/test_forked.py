"""A forked process: its answer arrives, and the program notices nothing else of it."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cgtool.devices.simulated import forked
from cgtool.devices.simulated.forked import ForkedProcess, can_fork
from cgtool.observe.frames import frame_of
from tests.forked_workers import in_fork


def answer_of(function: Callable[[], object], seconds: float = 20.0) -> bytes:
    def answer() -> bytes:
        function()
        return b"done\n"

    return ForkedProcess(answer, 30.0).answer(seconds)


def test_its_answer_is_what_the_function_returns() -> None:
    large = b"\n".join([b"x" * 1000] * 1000)
    assert ForkedProcess(lambda: large, 30.0).answer(20.0) == large
    assert answer_of(lambda: None) == b"done\n"
    assert answer_of(lambda: sys.exit(3)) == b""


def test_an_error_of_our_own_is_silent_except_in_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program raises, which is called again too late, never shows."""
    of_ours, of_the_program = partial(frame_of, None), partial(divmod, 1, 0)
    assert answer_of(of_ours) == answer_of(of_the_program) == b""
    monkeypatch.setattr(forked, "strict", True)
    assert answer_of(of_the_program) == b""
    with pytest.raises(AssertionError, match="frame_of"):
        answer_of(of_ours)


def test_it_is_ended_if_it_takes_too_long() -> None:
    began = time.monotonic()
    assert answer_of(lambda: [None for _ in iter(int, 1)], seconds=0.5) == b""
    assert time.monotonic() - began < 10


def test_it_is_ended_if_it_waits_for_a_lock_of_the_program() -> None:
    lock = threading.Lock()
    with lock:
        began = time.monotonic()
        assert answer_of(lock.acquire) == b""
        assert time.monotonic() - began < 10


def test_it_is_no_child_of_the_program() -> None:
    in_fork(_waits_for_its_children, timeout=60)


def _waits_for_its_children() -> None:
    received = []
    signal.signal(signal.SIGCHLD, lambda *_: received.append(os.getpid()))
    assert answer_of(lambda: None) == b"done\n"
    with pytest.raises(ChildProcessError):
        os.wait()
    assert not received
    with subprocess.Popen(["true"]):
        assert answer_of(lambda: time.sleep(0.2)) == b"done\n"
    assert received


def test_a_thread_cannot_take_the_signal_from_a_handler() -> None:
    possible = []
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        thread = threading.Thread(target=lambda: possible.append(can_fork()))
        thread.start()
        thread.join()
        assert possible == [False]
        assert can_fork()
    finally:
        signal.signal(signal.SIGCHLD, handler)


def test_descriptors_lead_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    with path.open("r+b", buffering=0) as file:
        assert answer_of(lambda: (file.read(4), file.write(b"more"))) == b"done\n"
        assert file.read(4) == b"0123"
    assert path.read_bytes() == b"0123456789"


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "new").write_text("text"),
        lambda path: (path / "old").unlink(),
        lambda path: (path / "old").rename(path / "moved"),
        lambda path: os.close(os.open(path / "old", os.O_TRUNC | os.O_WRONLY)),
        lambda path: subprocess.run(["touch", path / "new"], check=True),
        lambda path: os.fork() or (path / "new").mkdir(),
    ],
    ids=["write", "unlink", "rename", "truncate", "run", "fork"],
)
def test_it_ends_before_it_changes_anything(
    change: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / "old").write_text("text")
    assert answer_of(lambda: change(tmp_path)) == b""
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "text"


def test_it_may_read(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("text")
    assert answer_of((tmp_path / "old").read_text) == b"done\n"


def test_shared_memory_is_its_own() -> None:
    shared = mmap.mmap(-1, 1 << 20)
    shared[0] = 1

    def function() -> bytes:
        shared[0] += 1
        return bytes([shared[0]])

    assert ForkedProcess(function, 30.0).answer(20.0) == b"\2"
    assert shared[0] == 1
