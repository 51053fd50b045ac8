"""Notes what a program does with its graphs: captures, replays, and their ends.

Costs less than two microseconds a replay, and some Python for each op of a capture. Nothing is
watched outside captures, no mode or global hook is active, and no graph is kept alive.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from cgtool.model.capture import Contents, Environment, Function
from cgtool.model.finding import Finding
from cgtool.model.ledger import COMPILE
from cgtool.model.part_files import (
    COUNTER,
    Captured,
    Capturing,
    Finished,
    GraphEnded,
    Lost,
    Machine,
    PartWriter,
    Record,
    Replayed,
    Skipped,
    Tables,
)
from cgtool.observe.frames import (
    Site,
    chain_of,
    chain_or_waiting,
    exception_frames,
    frames_of,
    package_part,
)
from cgtool.observe.origins import OriginTable
from cgtool.recording.compiled import GraphTrees
from cgtool.torch_compat.patches import Patches

_ALWAYS_LOOKED_UP = 64
_LOOKED_UP = 32
"""The line of a replay is looked up for the first 64 of a graph, then for every 32nd."""


class Watch(Protocol):
    """A capture in progress, as a device follows it."""

    def read(self) -> Contents | None:
        """What was captured, at the end of the capture; None if that cannot be read."""

    def stop(self) -> None:
        """The capture is over."""


class RecordedDevice(Protocol):
    """What the recorder needs of a device: ``cuda.recording`` and ``simulated.recording``."""

    graph_class: Any
    """Has ``capture_begin``, ``capture_end``, ``replay`` and ``reset``."""

    def environment(self) -> Environment: ...

    def prepare(self) -> None:
        """Do ahead of the first capture what would take long in it."""

    def watch(self, graph: Any, table: OriginTable) -> Watch:
        """Follow the capture that has just begun. ``table`` takes the origins of its nodes."""

    def functions(self) -> tuple[Function, ...]:
        """All kernel functions seen so far."""

    def reserved_bytes(self) -> int | None:
        """What the allocator has reserved from the device."""


class _Graph:
    """A graph that can be replayed."""

    __slots__ = ("chunk", "count", "first", "host", "number", "offset", "places", "reference")

    def __init__(self, number: int, chunk: Any, offset: int) -> None:
        self.number = number
        self.chunk, self.offset = chunk, offset
        self.count = self.first = self.host = 0
        self.places: dict[tuple[Site, ...], int] = {}
        self.reference: Any = None


class _Capture:
    """A capture in progress."""

    def __init__(
        self,
        number: int,
        watch: Watch,
        reserved: int | None,
        graph: Any,
        abandoned: Callable[[Any], None],
    ) -> None:
        """``abandoned`` is called when the graph is freed while it is being captured."""
        self.number = number
        self.reference = weakref.ref(graph, abandoned)
        self.watch = watch
        self.reserved = reserved
        self.handled = sys.exc_info()[1]
        self.begin_ns = time.perf_counter_ns()
        self.collector_ns = 0
        self._collecting = 0
        gc.callbacks.append(self._collects)

    def _collects(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter_ns()
        elif self._collecting:
            self.collector_ns += time.perf_counter_ns() - self._collecting

    def stop(self) -> None:
        gc.callbacks.remove(self._collects)
        self.watch.stop()


class Recorder:
    """Follows the graphs of this process and writes them to its part."""

    def __init__(self, device: RecordedDevice, part: PartWriter, patches: Patches) -> None:
        """Follow every graph from now on."""
        self.device = device
        self._part = part
        self._trees = GraphTrees(patches, self._skipped)
        self._table = OriginTable()
        self._written = [0, 0, 0]
        """How many frames, origins and functions are in the part."""
        self._graphs: dict[int, _Graph] = {}
        """By ``id`` of the graph, until it is freed."""
        self._captures: dict[int, _Capture] = {}
        self._numbers = 0
        self._finished = False
        # The collector may run anywhere in here, and free graphs.
        self._lock = threading.RLock()
        self._install(patches)

    def _skipped(self, reason: str) -> None:
        self.write(Skipped(reason))

    def forked(self, part: PartWriter) -> None:
        """This process is a copy of another, whose graphs stay that one's."""
        self._part = part
        self._lock = threading.RLock()
        self._written = [0, 0, 0]
        self._numbers = 0
        self._graphs.clear()
        for capture in self._captures.values():
            with self._protected():
                capture.stop()
        self._captures.clear()

    def finish(self) -> None:
        """The process ends by itself: what is freed from now on was there until the end."""
        self.write(Finished(time.time_ns()))
        self._finished = True

    def write(self, *records: Record) -> bool:
        """Append to the part. False if the records are lost."""
        return self._part.append(*records)

    def _install(self, patches: Patches) -> None:
        owner = self.device.graph_class
        patches.set(owner, "replay", self._replay(owner.replay))
        for name, wrapper in (
            ("capture_begin", self._capture_begin),
            ("capture_end", self._capture_end),
            ("reset", self._reset),
        ):
            patches.wrap(owner, name, wrapper)

    # Captures.

    def _capture_begin(self, original: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        reserved = None
        with self._protected():
            if self._numbers == 0:
                self.device.prepare()
            reserved = self.device.reserved_bytes()
        original(graph, *args, **kwargs)
        with self._protected():
            self._begun(graph, reserved, *args, **kwargs)

    def _begun(
        self,
        graph: Any,
        reserved: int | None,
        _pool: Any = None,
        capture_error_mode: str = "global",
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        with self._lock:
            number = self._numbers
            self._numbers += 1
        if number == 0:
            # Not earlier: it initialises CUDA.
            self.write(Machine(self.device.environment()))
        frame = sys._getframe(2)
        chain = chain_or_waiting(frame)
        key, because = self._trees.current()
        self.write(
            Capturing(
                time.time_ns(),
                number,
                COMPILE if key else _owner(frame, chain),
                key,
                because,
                frames_of(chain),
                threading.current_thread().name,
                capture_error_mode,
            )
        )
        watch = self.device.watch(graph, self._table)
        known = id(graph)
        self._captures[known] = _Capture(
            number, watch, reserved, graph, lambda _: self._abandoned(known, number)
        )

    def _capture_end(self, original: Any, graph: Any) -> None:
        capture = self._captures.pop(id(graph), None)
        if capture is None:
            original(graph)
            return
        error = sys.exc_info()[1]
        raised = None if error is capture.handled else error
        contents = None
        read_ns = time.perf_counter_ns()
        if raised is None:
            with self._protected(), self._lock:
                contents = capture.watch.read()
        else:
            _leave_out_our_frames(raised)
        end_ns = time.perf_counter_ns()
        try:
            original(graph)
        except Exception as refused:
            raised = raised or refused
            raise
        finally:
            over_ns = time.perf_counter_ns()
            with self._protected():
                capture.stop()
            with self._protected(), self._lock:
                self._ended(graph, capture, contents, raised, (read_ns, end_ns, over_ns))

    def _ended(
        self,
        graph: Any,
        capture: _Capture,
        contents: Contents | None,
        raised: BaseException | None,
        clock: tuple[int, int, int],
    ) -> None:
        read_ns, end_ns, over_ns = clock
        reserved = self.device.reserved_bytes()
        pool = None
        if raised is None:
            chunk, offset = self._part.counter(capture.number)
            live = _Graph(capture.number, chunk, offset)
            key = id(graph)
            live.reference = weakref.ref(graph, lambda _: self._gone(key, live, "freed"))
            self._graphs[key] = live
            with contextlib.suppress(RuntimeError):
                first, second = graph.pool()
                pool = int(first), int(second)
        done_ns = time.perf_counter_ns()
        captured = Captured(
            capture.number,
            (read_ns - capture.begin_ns) + (over_ns - end_ns),
            over_ns - end_ns,
            capture.collector_ns,
            (end_ns - read_ns) + (done_ns - over_ns),
            pool,
            None
            if reserved is None or capture.reserved is None
            else max(reserved - capture.reserved, 0),
            None if raised is None else f"{type(raised).__name__}: {raised}".split("\n")[0],
            None if raised is None else _diagnosis(raised),
            None if contents is None else contents[0],
            () if contents is None else contents[1],
        )
        lists = self._table.frames, self._table.origins, self.device.functions()
        frames, origins, functions = (
            entries[written:] for entries, written in zip(lists, self._written, strict=True)
        )
        new = Tables(frames, origins, functions)  # type: ignore[arg-type] # of three types
        if self.write(new, captured):
            self._written = [len(entries) for entries in lists]

    def _ended_early(self, capture: _Capture, failure: str) -> None:
        spent_ns = time.perf_counter_ns() - capture.begin_ns
        collector_ns = capture.collector_ns
        self.write(
            Captured(
                capture.number, spent_ns, 0, collector_ns, 0, None, None, failure, None, None, ()
            )
        )

    def _abandoned(self, key: int, number: int) -> None:
        capture = self._captures.get(key)
        if capture is not None and capture.number == number:
            del self._captures[key]
            with self._protected():
                capture.stop()
            with self._protected():
                self._ended_early(capture, "the graph was freed during its capture")

    # Graphs.

    def _replay(self, original: Any) -> Callable[[Any], None]:
        graphs, clock, now = self._graphs, time.perf_counter_ns, time.time_ns
        pack = COUNTER.pack_into
        always, some = _ALWAYS_LOOKED_UP, _LOOKED_UP - 1

        def replay(graph: Any) -> None:
            begin = clock()
            original(graph)
            live = graphs.get(id(graph))
            if live is None:
                return
            last, spent = now(), clock() - begin
            # Python changes threads only at calls: other threads may replay the same graph.
            live.host += spent
            live.count = count = live.count + 1
            if count == 1:
                live.first = last
            pack(live.chunk, live.offset, live.count, live.first, last, live.host)
            if count <= always or not count & some:
                self._looked_up(live, chain_of(sys._getframe(1)))

        return replay

    def _looked_up(self, live: _Graph, chain: tuple[Site, ...]) -> None:
        seen = live.places[chain] = live.places.get(chain, 0) + 1
        if not seen & (seen - 1):
            self.write(Replayed(live.number, frames_of(chain), seen))

    def _reset(self, original: Any, graph: Any) -> None:
        live = self._graphs.get(id(graph))
        original(graph)
        if live is not None:
            self._gone(id(graph), live, "reset")

    def _gone(self, key: int, live: _Graph, end: str) -> None:
        if self._graphs.get(key) is live:
            del self._graphs[key]
            if not self._finished:
                self.write(GraphEnded(time.time_ns(), live.number, end))

    @contextlib.contextmanager
    def _protected(self) -> Any:
        """A fault of ours is noted, and the program goes on."""
        try:
            yield
        except Exception as error:
            self.write(Lost(f"{type(error).__name__}: {error}"))


def _leave_out_our_frames(error: BaseException) -> None:
    """A traceback as it would be without us: without the frames around the ops of a capture."""
    before = error.__traceback__
    while before is not None:
        following = before.tb_next
        while following is not None and _is_ours(following.tb_frame.f_code.co_filename):
            following = following.tb_next
        before.tb_next = following
        before = following


def _is_ours(file: str) -> bool:
    return package_part(file).startswith("/cgtool/")


def _owner(frame: Any, chain: tuple[Site, ...]) -> str:
    """What captures: PyTorch for its user, or a function of the user's."""
    while frame is not None:
        part = package_part(frame.f_code.co_filename)
        if part.startswith("/torch/_inductor/"):
            return COMPILE
        if part == "/torch/cuda/graphs.py" and frame.f_code.co_name == "make_graphed_callables":
            return "make_graphed_callables"
        frame = frame.f_back
    return chain[0][0].co_qualname if chain else ""


def _diagnosis(raised: BaseException) -> Finding | None:
    """What the error that ended a capture means, at the line that raised it; None if it is not
    about the capture."""
    # Slow to import, and most programs never need it.
    from cgtool.detectors.capture_errors import explain

    with contextlib.suppress(Exception):  # methods of the user's exception may raise
        finding = explain(raised, "capture")
        if finding is not None:
            return msgspec.structs.replace(finding, frames=exception_frames(raised))
    return None
