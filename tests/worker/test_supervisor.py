"""A worker is followed and ended whatever the process looks like that started it."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterator

import pytest

from cgtool.worker import supervisor


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """The next descriptor is above 1023, the last one that ``select`` takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this machine allows no 2048 open files")
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        descriptor = 0
        while descriptor < 1024:
            descriptor = os.dup(2)
            held.callback(os.close, descriptor)
        yield


@pytest.mark.usefixtures("many_open_files")
def test_a_worker_is_followed_by_a_process_with_many_open_files() -> None:
    worker = supervisor.Worker()
    try:
        assert worker.pipe > 1023
        worker.close()
        assert list(worker.messages(time.monotonic() + 60)) == []
    finally:
        worker.end()


def test_a_worker_is_ended_by_any_thread() -> None:
    worker = supervisor.Worker()
    thread = threading.Thread(target=worker.end)
    thread.start()
    thread.join()
    try:
        assert worker.process.poll() is not None
        assert not worker.stack_file.parent.exists()
    finally:
        worker.process.kill()
