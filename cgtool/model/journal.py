"""The journal of a recorded process: a log of records, and a table of counters.

A process may be killed at any time, so nothing waits for its end. Records are appended, and replays
are counted, in memory that is mapped to files, which the operating system keeps when the process is
gone: that takes no call of it, which would take as long as all else that is done for a record. On a
full disk, or with no descriptors left, records are lost; they are counted in the same memory.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import re
import shutil
import signal
import struct
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cgtool.model.files import check_replaceable, encodable, encode_json, unwritable
from cgtool.model.records import ANY_RECORD, Lost, Record

LOG, COUNTERS, NOTES, TIMES, LOST = ".log", ".counters", ".notes", ".times", ".lost"
ORDER = ".order"
"""Suffixes of the files of a process; a ``.lost`` file says why it is not recorded."""
NOT_WRITTEN = "not all of its files could be written"
_NAME = re.compile(r"(\d+)-(\d+)")
"""Names of those files: the id of the process, and when it began."""
STACKS_WANTED = "stacks-wanted"
"""A file beside those of the processes: whenever it changes, each of them writes its stacks."""
COMMAND = "command.json"
"""The file of the command, beside those of its processes."""
READY_FILE = "ready.json"
"""Its output has matched ``--ready-output``."""


class Command(msgspec.Struct):
    """What ``cgtool run`` started, when by the system clock, and in which folder."""

    command: tuple[str, ...]
    started_ns: int
    folder: str = ""


def new_folder(target: Path, command: Command) -> Path:
    """Where the processes leave their journals: next to the file that is made of them.

    Raises CgtoolError (exit 2) if nothing can be written there.
    """
    check_replaceable(target)
    with contextlib.ExitStack() as on_failure:
        try:
            folder = Path(tempfile.mkdtemp(prefix=".cgtool-run-", dir=target.absolute().parent))
            on_failure.callback(shutil.rmtree, folder, ignore_errors=True)
            (folder / COMMAND).write_bytes(encode_json(command))
        except OSError as error:
            raise unwritable(target, error.strerror or str(error)) from error
        on_failure.pop_all()
    return folder


class Ready(msgspec.Struct):
    """A line of the program's output has matched ``--ready-output``."""

    time_ns: int
    output: str
    """The line."""
    replays: dict[str, int]
    """Of each process so far, by the name of its journal."""


def write_ready(folder: Path, output: str) -> None:
    """Note that this line has come out now."""
    now_ns = time.time_ns()
    replays = {
        each.log.stem: sum(count for count, *_ in each.counters().graphs)
        for each in read_journals(folder)
    }
    ready = folder / READY_FILE
    ready.with_suffix(".new").write_bytes(encode_json(Ready(now_ns, output, replays)))
    ready.with_suffix(".new").rename(ready)


def read_ready(folder: Path) -> Ready | None:
    """None if no line has matched, or none was looked for."""
    try:
        return msgspec.json.decode((folder / READY_FILE).read_bytes(), type=Ready)
    except (OSError, msgspec.MsgspecError):
        return None


_LENGTH = struct.Struct("<I")
COUNTER = struct.Struct("<4Q")
"""Counters of one graph: replays, the times of the first and the last, and the host time of all
(ns)."""
_FIRST, _GPU = struct.Struct("<Q"), struct.Struct("<QQ")
"""In the file ``TIMES``, of one graph: the host time of its first replay; behind that, how many
replays have a GPU time, and that of all of them (ns). The first slot has the GPU time of the
process, inside graphs and outside."""
RING = 4095
"""How many of the last replays are kept in the file ``ORDER``: the numbers of their graphs, after a
count of all that have begun."""
_LOG_CHUNK = 1 << 16
"""Bytes of the log that are mapped at once, at least."""
_CHUNK = 1024
"""Counters that are mapped at once. The first of the file counts the records that were lost, and
how often some were appended."""


class _CounterFile:
    """Counters in memory that is mapped to a file, as many as are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunks: list[mmap.mmap] = []
        self.is_full = False
        """There was no room: what is counted from then on is lost."""

    def counter(self, number: int) -> tuple[mmap.mmap, int]:
        chunk, slot = divmod(number, _CHUNK)
        while len(self._chunks) <= chunk:
            self._chunks.append(self._map(len(self._chunks)))
        return self._chunks[chunk], slot * COUNTER.size

    def total(self) -> int:
        """The sum of the first numbers of all counters."""
        return sum(sum(memoryview(chunk).cast("Q")[::4]) for chunk in self._chunks)

    def _map(self, chunk: int) -> mmap.mmap:
        size = _CHUNK * COUNTER.size
        try:
            if self.is_full:
                raise OSError("no room before")
            return _mapped(self._path, chunk * size, size)
        except OSError:
            # The length of the file shows it.
            self.is_full = True
            return mmap.mmap(-1, size)


class _Log:
    """The records: each behind its length. Those of the file end where that is 0."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._maps: list[mmap.mmap] = []
        """The last takes the next record. The others are kept: to unmap one would close a
        descriptor, which may be the program's by now if that has closed all that it does not
        know."""
        self._start = self._limit = self._end = 0
        """Where the last map begins and ends in the file, and where the next record will begin."""
        self._has_room = True

    def append(self, data: bytearray) -> None:
        """Append records: all of them or none. Raises OSError."""
        size = len(data)
        while self._has_room and self._end + size > self._limit:
            self._map(size)
        # Without a call up to here: a signal handler, or the garbage collector, may append, too.
        begin, start, room = self._end, self._start, self._maps[-1] if self._has_room else None
        self._end = begin + size
        if room is not None:
            try:
                _put(room, begin - start, data)
            except BaseException:  # of a signal handler: nothing may be missing before what follows
                _put(room, begin - start, data)
                raise
            return
        try:
            self._write(data, begin)
        except OSError:
            if self._end == begin + size:
                self._end = begin
            raise

    def _map(self, size: int) -> None:
        start = self._end - self._end % mmap.ALLOCATIONGRANULARITY
        # Twice as much each time, so that there are few.
        size = max(self._end - start + size, _LOG_CHUNK, self._end)
        size += -size % mmap.ALLOCATIONGRANULARITY
        try:
            room = _mapped(self._path, start, size)
        except OSError:
            self._has_room = False
        else:
            self._maps.append(room)
            self._start, self._limit = start, start + size

    def _write(self, data: bytearray, begin: int) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            if os.pwrite(descriptor, data, begin) < len(data):
                os.ftruncate(descriptor, begin)
                raise OSError("not written whole")
        finally:
            os.close(descriptor)


def _put(room: mmap.mmap, at: int, data: bytearray) -> None:
    room[at + _LENGTH.size : at + len(data)] = data[_LENGTH.size :]
    # Last: until then nothing is there.
    room[at : at + _LENGTH.size] = data[: _LENGTH.size]


def _mapped(path: Path, start: int, size: int) -> mmap.mmap:
    """Map part of a file into memory. Raises OSError if the disk has no room for it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # Writing to mapped memory without a block on the disk would kill the program.
        os.posix_fallocate(descriptor, start, size)
        return mmap.mmap(descriptor, size, offset=start)
    finally:
        os.close(descriptor)


class _Protected:
    """The context of ``JournalWriter.protected``: a generator would take several times as long."""

    __slots__ = ("_append",)

    def __init__(self, append: Callable[[Record], object]) -> None:
        self._append = append

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: Any, error: BaseException | None, _traceback: Any) -> bool:
        if not isinstance(error, Exception) or _raised_by_signal_handler(error):
            return False
        self._append(Lost(f"{type(error).__name__}: {error}", captures=True))
        return True


class JournalWriter:
    """Writes the journal of this process."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._before: list[Any] = []
        self.renew(name)

    def renew(self, name: str) -> None:
        """Write to new files from now on: this process was forked."""
        # Kept, for their maps: as those of `_Log`.
        self._before.append(vars(self).copy())
        self._path = self._folder / f"{name}{LOG}"
        self._log = _Log(self._path)
        self._lost = self._appended = 0
        # The collector may run in here, and free graphs; so may the program's signal handlers.
        self.lock = threading.RLock()
        self._counters, self._notes, self._times = (
            _CounterFile(self._path.with_suffix(suffix)) for suffix in (COUNTERS, NOTES, TIMES)
        )
        self._order: memoryview[int] | None = None
        self._lost_counter = self._counters.counter(0)
        if self._counters.is_full:
            # A file without contents takes no room.
            with contextlib.suppress(OSError):
                self._path.with_suffix(LOST).touch()

    @property
    def journal(self) -> Journal:
        """What was written so far."""
        return Journal(self._path)

    def protected(self) -> contextlib.AbstractContextManager[None]:
        """While entered, a fault of the recorder is noted, and the program goes on. What a signal
        handler of the program raises meanwhile goes through."""
        return _Protected(self.append)

    def lost(self, reason: str) -> None:
        """Note what could not be recorded, besides captures."""
        self.append(Lost(reason))

    def append(self, *records: Record) -> bool:
        """Append records, in one write: all of them or none. False if they are lost."""
        data = bytearray()
        for record in records:
            try:
                packed = msgspec.msgpack.encode(record)
            except UnicodeEncodeError:
                packed = msgspec.msgpack.encode(encodable(msgspec.to_builtins(record)))
            data += _LENGTH.pack(len(packed)) + packed
        with self.lock:
            is_written = True
            try:
                self._log.append(data)
            except OSError:
                self._lost += len(records)
                is_written = False
            self._appended += 1
            COUNTER.pack_into(*self._lost_counter, self._lost, self._appended, 0, 0)
        return is_written

    def counter(self, number: int) -> tuple[mmap.mmap, int]:
        """The memory of a graph's counter, and its offset there."""
        with self.lock:
            return self._counters.counter(number + 1)

    def replays(self) -> int:
        """How many replays of all graphs were counted."""
        with self.lock:
            return self._counters.total() - self._lost

    @property
    def order(self) -> memoryview[int]:
        """The file ``ORDER``: a count, and ``RING`` numbers."""
        with self.lock:
            if self._order is None:
                size = (1 + RING) * 8
                try:
                    memory = _mapped(self._path.with_suffix(ORDER), 0, size)
                except OSError:
                    memory = mmap.mmap(-1, size)
                self._order = memoryview(memory).cast("Q")
            return self._order

    def note_counter(self, number: int) -> tuple[mmap.mmap, int]:
        """The counter of the replays that ``Noted`` records, or of the runs of ``StepRan``."""
        with self.lock:
            return self._notes.counter(number)

    def first_replay(self, number: int, host_ns: int) -> None:
        """Notes the host time of the first replay of a graph."""
        with self.lock:
            _FIRST.pack_into(*self._times.counter(number + 1), host_ns)

    def replay_time(self, number: int, replays: int, gpu_ns: int) -> None:
        """The GPU time of all replays of a graph that have one."""
        with self.lock:
            chunk, offset = self._times.counter(number + 1)
            _GPU.pack_into(chunk, offset + _FIRST.size, replays, gpu_ns)

    def gpu_time(self, inside_ns: int, outside_ns: int) -> None:
        """The GPU time of the process so far."""
        with self.lock:
            _GPU.pack_into(*self._times.counter(0), inside_ns, outside_ns)


def _raised_by_signal_handler(error: Exception) -> bool:
    codes: set[object] = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        function = getattr(handler, "__func__", handler)
        if not hasattr(function, "__code__"):
            function = getattr(type(handler), "__call__", None)  # noqa: B004
        codes.add(getattr(function, "__code__", None))
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_code in codes for frame in frames)


class Journal(NamedTuple):
    """The journal of one process, to read."""

    log: Path

    def records(self) -> Iterator[Record]:
        """One by one, because they may be larger than the memory; those of a log whose end is
        missing are followed by ``Lost``."""
        decoder = msgspec.msgpack.Decoder(ANY_RECORD)
        with self.log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while head := file.read(_LENGTH.size):
                if not any(head):  # also of a few bytes, where the disk was full
                    return
                try:
                    (length,) = _LENGTH.unpack(head)
                    if len(data := file.read(min(length, size))) < length:
                        raise ValueError("truncated")
                    yield decoder.decode(data)
                except (ValueError, struct.error, msgspec.MsgspecError):
                    yield Lost(
                        "the last record is incomplete: the process was killed while it wrote it",
                        captures=True,
                    )
                    return

    def counters(self) -> Counters:
        """None if there is no file. To be read after the records: a process that still runs counts
        what is recorded already."""
        entries = _entries(self.log.with_suffix(COUNTERS))
        times = _entries(self.log.with_suffix(TIMES))
        return Counters(
            *(entries[0][:2] if entries else (0, 0)),
            entries[1:],
            _entries(self.log.with_suffix(NOTES)),
            times[0][:2] if times else (0, 0),
            tuple(each[:3] for each in times[1:]),
            *_order(self.log.with_suffix(ORDER)),
        )


def read_journals(folder: Path) -> Iterator[Journal]:
    """The journals of all processes, in the order in which they began."""
    return map(Journal, _files(folder, LOG))


def read_lost(folder: Path) -> tuple[str, ...]:
    """Why processes left no journal, or an incomplete one."""
    if not folder.is_dir():
        return (f"the folder {folder} was removed while the program ran",)
    said = {path.stem: path.read_text("utf-8", "replace") for path in _files(folder, LOST)}
    logs = {path.stem for path in _files(folder, LOG)}
    unwritten = [path.stem for path in _files(folder, COUNTERS) if path.stem not in logs]
    return tuple(
        reason or f"process {name.partition('-')[0]}: {NOT_WRITTEN}"
        for name, reason in {**dict.fromkeys(unwritten, ""), **said}.items()
    )


def process_files(folder: Path, suffix: str) -> list[tuple[int, Path]]:
    """The ids of all processes with such a file, and the file, in the order in which they began.
    Both are in its name; files of other names are none of ours."""
    named = [
        (int(match[2]), int(match[1]), path)
        for path in folder.glob(f"*{suffix}")
        if (match := _NAME.fullmatch(path.stem))
    ]
    return [(pid, path) for _time_ns, pid, path in sorted(named)]


def _files(folder: Path, suffix: str) -> list[Path]:
    return [path for _pid, path in process_files(folder, suffix)]


class Counters(NamedTuple):
    """The counters of a process."""

    lost: int
    """Records that could not be written."""
    appended: int
    """Times that records were appended."""
    graphs: tuple[tuple[int, int, int, int], ...]
    """``COUNTER`` by number of the graph: fewer than there are graphs, if the disk was full."""
    notes: tuple[tuple[int, int, int, int], ...]
    """``COUNTER`` by number of a ``Noted``, or of a ``StepRan``: without host time."""
    gpu_ns: tuple[int, int]
    """Inside graphs, and outside (``--times``)."""
    times: tuple[tuple[int, int, int], ...]
    """By number of the graph: host time of the first replay, replays with a GPU time, that of all
    of them; fewer than there are graphs if the last were not replayed."""
    begun: int
    """Replays that have begun."""
    last_replays: tuple[int, ...]
    """The numbers of the graphs that were replayed last, the oldest first."""


def _entries(path: Path) -> tuple[tuple[int, int, int, int], ...]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    chunk = _CHUNK * COUNTER.size
    entries = COUNTER.iter_unpack(data[: len(data) - len(data) % chunk])
    # Of a damaged file, what counts nothing.
    return tuple(each if max(each) < 1 << 63 else (0, 0, 0, 0) for each in entries)


def _order(path: Path) -> tuple[int, tuple[int, ...]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, ()
    if len(data) < (1 + RING) * 8:
        return 0, ()
    begun, *ring = memoryview(data)[: (1 + RING) * 8].cast("Q")
    if max(begun, *ring) >= 1 << 63:  # a damaged file
        return 0, ()
    at = begun % RING
    return begun, tuple(ring[at:] + ring[:at] if begun > RING else ring[:begun])
