"""Work that waits until no capture is in progress."""

from __future__ import annotations

import threading
import time

import pytest

from cgtool.recorder import later as later_module
from cgtool.recorder.later import Later


def test_work_waits_until_no_capture_is_in_progress() -> None:
    capturing, done = threading.Event(), threading.Event()
    capturing.set()
    threads: list[int] = []
    later = Later(capturing.is_set)
    later.put(lambda: threads.append(threading.get_ident()))
    later.put(done.set)
    assert not done.wait(0.1)
    capturing.clear()
    assert done.wait(10)
    assert threads != [threading.get_ident()]


def test_a_thread_ends_some_time_after_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later_module, "_LINGERS", 0.05)
    later = Later(lambda: False)
    for _ in range(2):
        done = threading.Event()
        later.put(done.set)
        assert done.wait(10)
        while later._has_thread:
            time.sleep(0.001)


def test_the_thread_of_one_piece_does_the_next() -> None:
    later, threads = Later(lambda: False), list[int]()
    for _ in range(2):
        done = threading.Event()
        later.put(lambda: threads.append(threading.get_ident()))
        later.put(done.set)
        assert done.wait(10)
    later.finish()
    assert len(set(threads)) == 1 and threads[0] != threading.get_ident()


def test_what_waits_is_done_when_asked_for_and_in_order() -> None:
    done: list[int] = []
    later = Later(lambda: True)
    for number in range(3):
        later.put(lambda number=number: done.append(number))  # type: ignore[misc]
    later.finish()
    assert done == [0, 1, 2]
    later.renew()
    later.put(lambda: done.append(3))
    later.renew()
    later.finish()
    assert done == [0, 1, 2]


def test_the_longer_a_queue_the_more_is_done_at_once() -> None:
    done: list[int] = []
    later = Later(lambda: True)
    for number in range(1000):
        later.put(lambda number=number: done.append(number))  # type: ignore[misc]
    assert 900 < len(done) < 1000
    later.finish()
    assert done == list(range(1000))


def test_work_gives_way_to_a_capture_until_somebody_waits_for_it() -> None:
    capturing, began, done = threading.Event(), threading.Event(), threading.Event()
    later = Later(capturing.is_set)

    def work() -> None:
        capturing.set()
        began.set()
        later.give_way()
        done.set()

    later.put(work)
    assert began.wait(10)
    assert not done.wait(0.1)
    capturing.clear()
    assert done.wait(10)

    began.clear()
    done.clear()
    later.put(work)
    assert began.wait(10)
    later.finish()
    assert done.is_set()


def test_at_the_end_there_is_no_thread_though_a_capture_never_ends() -> None:
    later = Later(lambda: True)
    later.put(lambda: None)
    assert later._has_thread
    later.finish()
    assert not later._has_thread
    done = threading.Event()
    later.put(done.set)
    later.finish()
    assert done.is_set() and not later._has_thread


def test_a_fork_comes_between_two_pieces_of_work() -> None:
    capturing, began, log = threading.Event(), threading.Event(), list[str]()
    later = Later(capturing.is_set)

    def work() -> None:
        began.set()
        capturing.set()
        later.give_way()
        log.append("worked")

    later.put(work)
    later.put(lambda: log.append("worked again"))
    assert began.wait(10)
    with later.no_work():
        capturing.clear()
        log.append("forked")
        time.sleep(0.05)
    later.finish()
    assert log == ["worked", "forked", "worked again"]
