"""GPU times from CUPTI's records, which are laid out here as cupti_activity.h does."""

from __future__ import annotations

import ctypes
import platform
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from cgtool.devices.cuda import activity
from cgtool.devices.cuda.buffers import BYTES, Buffers
from cgtool.model.journal import LOG, Journal, JournalWriter

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="callbacks are machine code of x86-64"
)

SIZES = {10: 216, 1: 96, 2: 88, 22: 96, 51: 56}
"""Of CUDA 13.0; the code is not told."""


def functions(callbacks: Any) -> tuple[Any, Any]:
    """The callbacks, to be called without the GIL, as CUPTI does."""
    requested, completed = callbacks
    return (
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(requested.value),
        ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t,
            ctypes.c_size_t,
        )(completed.value),
    )  # fmt: skip


class Cupti:
    """The functions of it that the code calls."""

    def __init__(self) -> None:
        self.callbacks: Any = None
        self.enabled: list[int] = []
        self.pending: list[bytes] = []

    def call(self, name: str, *arguments: Any) -> None:
        match name:
            case "cuptiActivityRegisterCallbacks":
                self.callbacks = arguments
            case "cuptiActivityEnable":
                self.enabled.append(arguments[0])
            case "cuptiActivityDisable":
                self.enabled.remove(arguments[0])
            case "cuptiActivityFlushAll":
                self.deliver()
            case "cuptiGetGraphExecId":
                ctypes.cast(arguments[1], ctypes.POINTER(ctypes.c_uint32))[0] = (
                    arguments[0].value // 16
                )

    def deliver(self) -> None:
        records, self.pending = b"".join(self.pending), []
        if records:
            buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
            requested, completed = functions(self.callbacks)
            requested(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
            assert len(records) <= size.value
            assert buffer.value is not None
            ctypes.memmove(buffer.value, records, len(records))
            completed(None, 0, buffer, size, len(records))

    def cuptiActivityGetNextRecord(self, buffer: Any, valid: Any, record: Any) -> int:  # noqa: N802
        at = ctypes.cast(record, ctypes.POINTER(ctypes.c_void_p))
        kind = ctypes.c_uint32.from_address(at[0] or 0).value
        after = (at[0] or 0) + SIZES[kind]
        if after >= buffer.value + valid.value:
            return 12
        at[0] = after
        return 0

    def cuptiActivityGetNumDroppedRecords(self, *_: Any) -> int:  # noqa: N802
        return 0


class Graph:
    """Has an executable graph, or none yet."""

    def __init__(self, executable: int | None) -> None:
        self.executable = executable

    def raw_cuda_graph_exec(self) -> int:
        if self.executable is None:
            raise RuntimeError("not instantiated")
        return self.executable * 16


def launch(graph: int, start: int, end: int) -> bytes:
    return struct.pack("<IIQQII", 51, 7, start, end, 0, graph).ljust(SIZES[51], b"\0")


def work(kind: int, start: int, end: int, graph: int = 0) -> bytes:
    record = bytearray(SIZES[kind])
    struct.pack_into("<I12xQQ", record, 0, kind, start, end)
    struct.pack_into("<I", record, {10: 156, 1: 72, 2: 72, 22: 80}[kind], graph)
    return bytes(record)


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> Cupti:
    fake = Cupti()
    monkeypatch.setattr(activity, "library", lambda: fake)
    monkeypatch.setattr(activity, "call", fake.call)
    monkeypatch.setattr(activity._thread, "start_new_thread", lambda *_: 0)
    return fake


def test_replays_and_all_else_are_added_up(cupti: Cupti, tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "1-1")
    times = activity.GpuTimes(journal)
    assert sorted(cupti.enabled) == [1, 2, 10, 22, 51]
    times.follow(Graph(3), 0)
    times.follow(Graph(None), 1)
    cupti.pending = [
        launch(3, 1000, 1400), work(10, 2000, 2030), work(10, 2100, 2130, graph=3),
        launch(3, 3000, 3500), work(1, 3600, 3607), work(2, 3700, 3705), work(22, 3800, 3802),
        launch(4, 4000, 4100), launch(3, 5000, 0), work(10, 6000, 0),
    ]  # fmt: skip
    cupti.deliver()
    # With ``keep_graph``, the first replay instantiates; it may have been recorded before.
    times.follow(Graph(4), 1)
    # Another executable graph of the same capture.
    times.follow(Graph(5), 0)
    cupti.pending = [launch(5, 7000, 7011), launch(99, 8000, 8001)]
    times.finish()
    assert cupti.enabled == []
    counters = Journal((tmp_path / "1-1").with_suffix(LOG)).counters()
    assert [each[1:] for each in counters.times[:3]] == [(3, 911), (1, 100), (0, 0)]
    assert counters.gpu_ns == (400 + 500 + 100 + 11 + 1, 30 + 7 + 5 + 2)


def test_a_profiler_of_the_program_comes_first(cupti: Cupti, tmp_path: Path) -> None:
    times = activity.GpuTimes(JournalWriter(tmp_path, "1-1"))
    assert times.pause()
    assert (cupti.enabled, times.pause()) == ([], False)
    cupti.callbacks = None  # the profiler's
    times.resume()
    assert cupti.callbacks
    assert len(cupti.enabled) == 5


def test_buffers_of_several_threads_arrive_once_each() -> None:
    buffers = Buffers()
    requested, completed = functions(buffers.callbacks)

    def work(thread: int) -> None:
        for number in range(500):
            buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
            requested(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
            assert (size.value, most.value) == (BYTES, 0)
            ctypes.memmove(buffer.value or 0, struct.pack("<II", thread, number), 8)
            completed(None, 0, buffer, size, 8)

    seen = []
    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen += [(ctypes.string_at(address, 8), valid) for address, valid in buffers.taken()]
    seen += [(ctypes.string_at(address, 8), valid) for address, valid in buffers.taken()]
    assert len(seen) == len(set(seen)) == 2000
    # The buffer of another tool, which CUPTI hands over after that one has ended.
    foreign = ctypes.create_string_buffer(4096)
    completed(None, 0, ctypes.addressof(foreign), 4096, 100)
    assert list(buffers.taken()) == []
