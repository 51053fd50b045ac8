"""What a recorded process leaves behind: a log of records, and a table of counters.

A process may be killed at any time, so nothing waits for its end. Each record is appended by a
call of its own. Replays are counted in memory that is mapped to a file, which the operating system
keeps when the process is gone. On a full disk, or with no descriptors left, records are lost; they
are counted in the same memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from cgtool.model.capture import Edge, Environment, Frame, Function, Node, Origin
from cgtool.model.finding import Finding

LOG, COUNTERS, LOST = ".log", ".counters", ".lost"
"""Suffixes of the files of a process; a ``.lost`` file says why it is not recorded."""
COMMAND = "command.json"
"""The file of the command, beside those of its processes."""


class Command(msgspec.Struct):
    """What ``cgtool run`` started, and when by the system clock."""

    command: tuple[str, ...]
    started_ns: int


class Began(msgspec.Struct, tag="began", array_like=True):
    """A process has imported PyTorch."""

    time_ns: int
    pid: int
    parent: int
    command: tuple[str, ...]
    forked: bool


class Machine(msgspec.Struct, tag="machine", array_like=True):
    """Where the process captures; written before its first capture."""

    environment: Environment


class Capturing(msgspec.Struct, tag="capturing", array_like=True):
    """A capture has begun."""

    time_ns: int
    number: int
    owner: str
    key: str
    because: str | None
    frames: tuple[Frame, ...]
    thread: str
    mode: str


class Tables(msgspec.Struct, tag="tables", array_like=True):
    """What the next records refer to: entries that follow those of the records before."""

    frames: tuple[Frame, ...] = ()
    origins: tuple[Origin, ...] = ()
    functions: tuple[Function, ...] = ()


class Captured(msgspec.Struct, tag="captured", array_like=True):
    """A capture has ended."""

    number: int
    capture_ns: int
    instantiate_ns: int
    collector_ns: int
    cgtool_ns: int
    pool: tuple[int, int] | None
    reserved_bytes: int | None
    failure: str | None
    diagnosis: Finding | None
    nodes: tuple[Node, ...] | None
    edges: tuple[Edge, ...]


class Replayed(msgspec.Struct, tag="replayed", array_like=True):
    """A line that replays a graph, each time that its count has doubled."""

    number: int
    frames: tuple[Frame, ...]
    seen: int


class GraphEnded(msgspec.Struct, tag="graph-ended", array_like=True):
    """A graph was reset or freed."""

    time_ns: int
    number: int
    end: str


class Skipped(msgspec.Struct, tag="skipped", array_like=True):
    """``torch.compile`` did not capture, or captured again."""

    reason: str


class Lost(msgspec.Struct, tag="lost", array_like=True):
    """Something could not be recorded."""

    reason: str


class Finished(msgspec.Struct, tag="finished", array_like=True):
    """The process ends by itself."""

    time_ns: int


Record = (
    Began
    | Machine
    | Capturing
    | Tables
    | Captured
    | Replayed
    | GraphEnded
    | Skipped
    | Lost
    | Finished
)

_LENGTH = struct.Struct("<I")
COUNTER = struct.Struct("<4Q")
"""Of one graph: replays, the times of the first and the last, and the host time of all (ns)."""
_CHUNK = 1024
"""Counters that are mapped at once. The first of the file counts the records that were lost."""


class PartWriter:
    """The files of this process.

    The log is opened for each record: a program may close all descriptors that it does not know.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._log = folder / f"{name}{LOG}"
        self._counters = folder / f"{name}{COUNTERS}"
        self._chunks: list[mmap.mmap] = []
        self._is_full = False
        self._lost = 0
        # The collector may run in here, and free graphs; so may the program's signal handlers.
        self._lock = threading.RLock()
        self.counter(0)

    def append(self, *records: Record) -> bool:
        """Append records, in one write: all of them or none. False if they are lost."""
        data = bytearray()
        for record in records:
            packed = msgspec.msgpack.encode(record)
            data += _LENGTH.pack(len(packed)) + packed
        with self._lock:
            try:
                self._write(data)
            except OSError:
                self._lost += len(records)
                COUNTER.pack_into(self._chunks[0], 0, self._lost, 0, 0, 0)
                return False
        return True

    def _write(self, data: bytearray) -> None:
        descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, data) < len(data):
                os.ftruncate(descriptor, size)
                raise OSError("not written whole")
        finally:
            os.close(descriptor)

    def counter(self, number: int) -> tuple[mmap.mmap, int]:
        """The memory of a graph's counter, and its offset there."""
        chunk, slot = divmod(number + 1, _CHUNK)
        with self._lock:
            while len(self._chunks) <= chunk:
                self._chunks.append(self._map(len(self._chunks)))
        return self._chunks[chunk], slot * COUNTER.size

    def _map(self, chunk: int) -> mmap.mmap:
        size = _CHUNK * COUNTER.size
        try:
            if self._is_full:
                raise OSError("no room before")
            descriptor = os.open(self._counters, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                # Writing to mapped memory without a block on the disk would kill the program.
                os.posix_fallocate(descriptor, chunk * size, size)
                return mmap.mmap(descriptor, size, offset=chunk * size)
            finally:
                os.close(descriptor)
        except OSError:
            # What is counted from here on is lost. The length of the file shows it; a file without
            # contents takes no room.
            self._is_full = True
            with contextlib.suppress(OSError):
                self._counters.with_suffix(LOST).touch()
            return mmap.mmap(-1, size)


def read_log(path: Path) -> Iterator[Record]:
    """The records of a log; those of a log whose end is missing are followed by ``Lost``."""
    data = path.read_bytes()
    decoder = msgspec.msgpack.Decoder(Record)
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        end = start + (_LENGTH.unpack_from(data, at)[0] if start <= len(data) else 1)
        try:
            if end > len(data):
                raise ValueError("truncated")
            yield decoder.decode(data[start:end])
        except (ValueError, msgspec.MsgspecError):
            yield Lost("the last record was not written whole: the process was ended in between")
            return
        at = end


class Counters(NamedTuple):
    """What a process counted."""

    lost: int
    """Records that could not be written."""
    graphs: tuple[tuple[int, int, int, int], ...]
    """``COUNTER`` by number of the graph: fewer than there are graphs, if the disk was full."""


def read_counters(path: Path) -> Counters:
    """The counters of a process; none if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Counters(0, ())
    chunk = _CHUNK * COUNTER.size
    entries = tuple(COUNTER.iter_unpack(data[: len(data) - len(data) % chunk]))
    return Counters(entries[0][0], entries[1:]) if entries else Counters(0, ())
