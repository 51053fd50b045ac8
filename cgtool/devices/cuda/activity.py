"""GPU time of every replay, and of everything that runs outside graphs (``cgtool run --times``).

CUPTI leaves one record for each launch of a graph (``GRAPH_TRACE``; while it is enabled there are
none for the nodes inside), and one for each kernel, copy and fill outside graphs. Records are added
up a few times a second, so that a killed process leaves what it had.

Through ``ctypes`` on the library that PyTorch loaded: the program needs no other package. Fields
and their offsets are those of cupti_activity.h of CUDA 12.8 to 13.0, where only fields at the end
differ; the sizes of records are those that CUPTI itself steps by.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import struct
import threading
from collections import defaultdict
from typing import Any

from cgtool.devices.cuda.buffers import process_buffers
from cgtool.devices.cuda.cupti import CuptiUnavailable, call, library
from cgtool.model import clock
from cgtool.model.journal import JournalWriter

_MEMCPY, _MEMSET, _KERNEL, _PEER_COPY, _GRAPH_TRACE = 1, 2, 10, 22, 51
_GRAPH_ID = {_MEMCPY: 72, _MEMSET: 72, _KERNEL: 156, _PEER_COPY: 80}
"""Where a record has the number of its graph: 0 outside graphs."""
_KIND = struct.Struct("<I")
_SPAN = struct.Struct("<QQ")
_SPAN_OFFSET = 16
_LAUNCH = struct.Struct("<8xQQ4xI")
"""Fields of a graph launch: start, end, and the number of the executable graph."""
_READ_EVERY_S = 0.25
_COMPLETED_ONLY, _FORCED = 0, 1
_SUCCESS, _END_OF_BUFFER = 0, 12


class GpuTimes:
    """Adds up what runs on the GPUs of this process, into its journal."""

    def __init__(self, journal: JournalWriter) -> None:
        """Record from now on. Raises CuptiUnavailable, and CuptiBusy where another tool records."""
        self._journal = journal
        library()  # raises if there is none
        self._lock = threading.RLock()
        self._captures: dict[int, int] = {}
        """The capture of each executable graph, by its number."""
        self._launches: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        """By capture: how many launches, and their time."""
        self._unknown: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        """Counts for executable graphs whose capture is not known."""
        self._inside_ns = self._outside_ns = 0
        self._sizes: dict[int, int] = {}
        self._buffers = process_buffers()
        self._is_on = self._is_over = False
        self.resume()
        _thread.start_new_thread(self._read_regularly, ())

    def follow(self, graph: Any, number: int) -> None:
        """Launches of the executable graph that a ``CUDAGraph`` has now are replays of a
        capture."""
        identifier = ctypes.c_uint32()
        try:
            handle = ctypes.c_void_p(int(graph.raw_cuda_graph_exec()))
        except (AttributeError, RuntimeError):
            return  # PyTorch 2.8, or none before its first replay
        call("cuptiGetGraphExecId", handle, ctypes.byref(identifier))
        with self._lock:
            self._captures[identifier.value] = number
            launches, duration_ns = self._unknown.pop(identifier.value, (0, 0))
            self._launched(number, launches, duration_ns)

    def pause(self) -> bool:
        """Stop recording, for another profiler of this process; whether it recorded until now."""
        if not self._is_on:
            return False
        self._is_on = False
        with contextlib.suppress(CuptiUnavailable):
            call("cuptiActivityFlushAll", _FORCED)
            for kind in (_GRAPH_TRACE, *_GRAPH_ID):
                call("cuptiActivityDisable", kind)
        self._read()
        return True

    def finish(self) -> None:
        """Stops recording, and counts what has ended."""
        self.pause()
        self._is_over = True

    def resume(self) -> None:
        """Record again. Raises CuptiUnavailable."""
        if not (self._is_on or self._is_over):
            call("cuptiActivityRegisterCallbacks", *self._buffers.callbacks)
            for kind in (_GRAPH_TRACE, *_GRAPH_ID):
                call("cuptiActivityEnable", kind)
            self._is_on = True

    def dropped(self) -> int:
        """How many records there was no memory for."""
        count = ctypes.c_size_t()
        code = library().cuptiActivityGetNumDroppedRecords(None, 0, ctypes.byref(count))
        return count.value if code == _SUCCESS else 0

    def _read_regularly(self) -> None:
        while not self._is_over:
            clock.sleep(_READ_EVERY_S)
            if self._is_on:
                library().cuptiActivityFlushAll(_COMPLETED_ONLY)
                self._read()

    def _read(self) -> None:
        with self._lock:
            for address, valid in self._buffers.taken():
                self._add(address, valid)
            self._journal.gpu_time(self._inside_ns, self._outside_ns)

    def _add(self, address: int, valid: int) -> None:
        buffer, sizes = (ctypes.c_char * valid).from_address(address), self._sizes
        launches: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        at = 0
        while at + _KIND.size <= valid:
            (kind,) = _KIND.unpack_from(buffer, at)
            if kind == _GRAPH_TRACE:
                start, end, graph = _LAUNCH.unpack_from(buffer, at)
                if end > start:  # else it has not ended
                    launches[graph][0] += 1
                    launches[graph][1] += end - start
            elif kind in _GRAPH_ID:
                start, end = _SPAN.unpack_from(buffer, at + _SPAN_OFFSET)
                if end > start and not _KIND.unpack_from(buffer, at + _GRAPH_ID[kind])[0]:
                    self._outside_ns += end - start
            at += sizes.get(kind) or self._size(address, valid, at, kind)
        for graph, (count, duration_ns) in launches.items():
            self._inside_ns += duration_ns
            if graph in self._captures:
                self._launched(self._captures[graph], count, duration_ns)
            else:
                self._unknown[graph][0] += count
                self._unknown[graph][1] += duration_ns

    def _launched(self, number: int, count: int, duration_ns: int) -> None:
        launches = self._launches[number]
        launches[0] += count
        launches[1] += duration_ns
        self._journal.replay_time(number, *launches)

    def _size(self, address: int, valid: int, at: int, kind: int) -> int:
        """The size of records of a kind, from the one at ``at``."""
        record = ctypes.c_void_p(address + at)
        code = library().cuptiActivityGetNextRecord(
            ctypes.c_void_p(address), ctypes.c_size_t(valid), ctypes.byref(record)
        )
        if code != _SUCCESS or not record.value or record.value <= address + at:
            return valid - at  # the last one, or nothing that can be read
        self._sizes[kind] = record.value - address - at
        return self._sizes[kind]
