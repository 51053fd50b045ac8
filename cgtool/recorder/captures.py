"""The captures of a process: what each was spent on, what it holds, and why one failed."""

from __future__ import annotations

import _thread
import contextlib
import gc
import inspect
import os
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from cgtool.model import clock
from cgtool.model.capture import Contents, Environment, Frames
from cgtool.model.collector import CollectorPaused
from cgtool.model.finding import Finding
from cgtool.model.journal import JournalWriter
from cgtool.model.ledger import CALLABLES, COMPILE, Collective, MemoryUse
from cgtool.model.records import (
    Captured,
    Capturing,
    Entering,
    GraphRead,
    Machine,
    NeedsRecorder,
    Ranked,
    Tables,
)
from cgtool.observe.frames import (
    Chain,
    FrameTable,
    caller_of_cgtool,
    callers,
    exception_frames,
    frames_of,
    package_part,
)
from cgtool.observe.graphs import GRAPHS, Beginning
from cgtool.observe.waiting import chain_or_waiting
from cgtool.recorder.costs import Before, CaptureCosts
from cgtool.recorder.later import Later
from cgtool.recorder.recorded_device import GiveWay, RecordedDevice, Watch

_now = clock.perf_counter_ns
_BEGINS = 5_000_000_000
"""Nanoseconds after which a capture that was about to begin is taken for one that never did."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgtool.observe.origins import OriginTable
    from cgtool.torch_compat.allocator import PoolSegment
    from cgtool.torch_compat.storages import StorageRef


class Start(NamedTuple):
    """The process, just before a capture."""

    before: Before
    reserved_bytes: int | None = None
    time_ns: int = 0


class Capture:
    """A capture, of the thread that makes this object."""

    number: int
    start: Start
    begin_ns: int
    """When it began."""

    def __init__(self, watch: Watch, chain: Chain, is_capturing: Callable[[int], bool]) -> None:
        """``is_capturing``: whether a thread captures."""
        self.ident = get_ident()
        self.overlaps = False
        """Another capture was in progress meanwhile."""
        self.chain = chain
        """The calls that lead to it; empty if PyTorch captures for the program."""
        self.nested: Frames = ()
        """The line that began another capture inside it, first of all, and its callers."""
        self.is_left = False
        """Its code has raised out of ``torch.cuda.graph``, and not in an ``except`` of its own."""
        self.captures: Chain = ()
        """Captures without functions that are over at its end, if there are such."""
        self.thread = threading.current_thread().name
        self.watch = watch
        self.free_bytes: int | None = None
        """Free memory just before the end of the capture, which instantiates the graph."""
        self.contents: Callable[[GiveWay], Contents] | None = None
        """Reads the part of its contents that must be read before its end."""
        self.segments: Sequence[PoolSegment] = ()
        """Those of its pool, after it."""
        self.memory: Sequence[int] = ()
        """The numbers of ``storages``."""
        self.read_ns = self.end_ns = 0
        """When its code had run, and when ``capture_end`` was called."""
        self.stream: int | None = None
        """The handle of the stream that captures."""
        self.collectives: list[tuple[Collective, int]] = []
        """With their sizes."""
        self.collector_ns = 0
        self._collecting = 0
        self._is_capturing = is_capturing
        self._ended_before = set(map(id, _ended_threads()))

    def begin(self, number: int, start: Start, graph: Any) -> None:
        """It has begun."""
        self.number, self.start = number, start
        self.watch.begin(graph)
        gc.callbacks.append(self._collects)
        self.begin_ns = self.read_ns = self.end_ns = _now()

    def _collects(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            # All wait for a collection, but that of another capture belongs to that one.
            here = get_ident()
            is_mine = here == self.ident or not self._is_capturing(here)
            self._collecting = _now() if is_mine else 0
        elif self._collecting:
            self.collector_ns += _now() - self._collecting

    def ended_threads(self) -> list[threading.Thread]:
        """Threads that have ended since it began."""
        return [thread for thread in _ended_threads() if id(thread) not in self._ended_before]

    def read(self) -> None:
        self.contents = self.watch.read()

    def storages(self) -> Sequence[StorageRef]:
        """See ``Watch.storages``."""
        return self.watch.storages() if self.contents is not None else ()

    def uses(self) -> tuple[MemoryUse, ...]:
        """What it does with the memory of these."""
        return tuple(
            MemoryUse(number, *nodes)
            for number, nodes in zip(self.memory, self.watch.uses(), strict=True)
            if any(nodes)
        )

    def stop(self) -> None:
        gc.callbacks.remove(self._collects)
        self.watch.stop()


class Expected(NamedTuple):
    """A capture that is about to begin: what it needs."""

    capture: Capture
    frames: Frames
    """The line that begins it, and its callers."""


class Captures:
    """Writes the captures of this process to its journal."""

    def __init__(self, device: RecordedDevice, journal: JournalWriter, costs: CaptureCosts) -> None:
        self._device = device
        self._journal = journal
        self._costs = costs
        self._later = Later(self._is_busy)
        self._is_prepared = self._is_over = False
        self._frames = FrameTable()
        self.renew()
        device.when_used(self._prepare_soon)

    def renew(self) -> None:
        """Start over: the journal is empty."""
        # The garbage collector may run while the lock is held, and free graphs.
        self._lock = threading.RLock()
        self._preparing = threading.RLock()
        """Held while what captures need is imported."""
        self._has_captured = False
        self._in_progress: list[Capture] = []
        self._beginning: dict[int, int] = {}
        """When a capture was about to begin, by thread, until it has."""
        self._later.renew()
        self._written = [0, 0, 0]
        """How many frames, origins and functions the journal has."""
        self._rank: tuple[int, int] | None = None

    def is_capturing(self, thread: int) -> bool:
        """Whether a capture of this thread's is in progress."""
        return any(capture.ident == thread for capture in self._in_progress)

    @property
    def are_in_progress(self) -> bool:
        """Whether any thread captures."""
        return bool(self._in_progress)

    def write_all(self) -> None:
        """Write what waits until no capture is in progress."""
        self._later.do_all()

    def _is_busy(self) -> bool:
        """Whether a capture is in progress, or about to be."""
        if self._in_progress:
            return True
        since = _now() - _BEGINS
        return any(begins_ns > since for begins_ns in list(self._beginning.values()))

    @cached_property
    def _table(self) -> OriginTable:
        # Imports the op recorder, which nothing needs before the first capture.
        from cgtool.observe.origins import OriginTable

        return OriginTable()

    def begins(self) -> Start:
        """A capture is about to begin."""
        before, now = self._costs.begins(), _now()
        self._beginning[get_ident()] = now
        self._prepare_now()
        return Start(before, self._device.reserved_bytes(), now)

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """While entered, no thread of the recorder's own runs: a process that is forked meanwhile
        keeps none of the locks that such a thread may hold, in cgtool or in what it calls."""
        with self._preparing, self._later.no_work():
            yield

    def _prepare_soon(self) -> None:
        """The program uses the device: it may capture in a moment."""
        with contextlib.suppress(RuntimeError):  # the process ends, or has too many
            _thread.start_new_thread(self._prepare_on_thread, ())

    def _prepare_on_thread(self) -> None:
        # Without a pause of the collector, which the program may switch off or on meanwhile. What
        # fails here fails again in the first capture, which says so.
        with self._preparing, contextlib.suppress(Exception):
            if not self._is_over:
                self._prepare()

    def _prepare_now(self) -> None:
        if not self._is_prepared:
            with CollectorPaused():
                self._prepare()

    def _prepare(self) -> None:
        with self._preparing:
            if not self._is_prepared:
                from cgtool.torch_compat.op_key import note_collectives

                note_collectives(self._note_collective)
                self._device.prepare()
                self._table  # noqa: B018
                self._is_prepared = True
                if self._device.notes_ops_in_python():
                    self._journal.append(NeedsRecorder(sys.executable or ""))

    def _note_collective(self, op: Any, args: Any, kwargs: Any) -> None:
        """A collective is called. In a backward, it may be by a thread of autograd's."""
        here, in_progress = get_ident(), self._in_progress
        capture = next((each for each in in_progress if each.ident == here), None)
        if capture is None and len(in_progress) == 1:
            capture = in_progress[0]
        if capture is not None:
            from cgtool.observe.collectives import collective_of

            with self._journal.protected():
                known = collective_of(op, args, kwargs)
                if known is not None:
                    collective, size = known
                    if self._device.stream() != capture.stream:
                        collective = msgspec.structs.replace(collective, waits=False)
                    capture.collectives.append((collective, size))

    def note_rank(self) -> None:
        """Note the rank of this process, once it is known."""
        if self._rank is None and "torch.distributed" in sys.modules:
            from cgtool.observe.collectives import rank_of_process

            with self._journal.protected():
                self._rank = rank_of_process()
                if self._rank is not None:
                    self._journal.append(Ranked(*self._rank))

    def expect(self, beginning: Beginning) -> Expected:
        """A capture is about to begin."""
        if not self._has_captured:
            self._journal.append(Entering(clock.time_ns()))
        self._prepare_now()
        compiled = beginning.owner == COMPILE
        watch = self._device.watch(self._table, beginning.chain, compiled=compiled)
        by_program = beginning.owner not in (COMPILE, CALLABLES)
        chain = beginning.chain if by_program else ()
        capture = Capture(watch, chain, self.is_capturing)
        return Expected(capture, self._frames.frames_of(beginning.chain))

    def began(
        self,
        number: int,
        beginning: Beginning,
        start: Start | None,
        expected: Expected | None = None,
    ) -> Capture:
        """A capture has begun. ``start`` is what ``begins`` returned; None if that failed.
        ``expected``: what ``expect`` returned; None if it was not expected."""
        capture, frames = expected or self.expect(beginning)
        self._write_beginning(number, beginning, frames)
        start = start or Start(Before(None, None, self._costs.compiled_ns()))
        if beginning.warm_up_ns is not None:
            start = start._replace(before=start.before._replace(warm_up_ns=beginning.warm_up_ns))
        capture.begin(number, start, beginning.graph)
        capture.stream = self._device.stream()
        with self._lock:
            self._in_progress.append(capture)
            if len(self._in_progress) > 1:
                for each in self._in_progress:
                    each.overlaps = True
        self._beginning.pop(get_ident(), None)
        return capture

    def refused(self, number: int, beginning: Beginning, error: BaseException) -> None:
        """``capture_begin`` has raised, or what ``torch.cuda.graph`` does before it."""
        from cgtool.detectors.capture_errors import BEGIN, BEGIN_INSIDE

        self._beginning.pop(get_ident(), None)
        self._write_beginning(number, beginning, self._frames.frames_of(beginning.chain))
        phase, here = BEGIN, get_ident()
        for outer in (each for each in self._in_progress if each.ident == here):
            phase = BEGIN_INSIDE
            outer.nested = outer.nested or frames_of(beginning.chain)
        diagnosis = _diagnosis(error, (), [each.thread for each in self._in_progress], phase)
        self._journal.append(Captured(number, failure=_first_line(error), diagnosis=diagnosis))

    def _write_beginning(self, number: int, beginning: Beginning, frames: Frames) -> None:
        with self._lock:
            is_first, self._has_captured = not self._has_captured, True
        if is_first:
            # Not earlier: it initializes CUDA.
            self._later.put(partial(self._write_machine, self._device.environment()))
        self.note_rank()
        self._journal.append(
            Capturing(
                clock.time_ns(),
                number,
                beginning.owner,
                beginning.key,
                beginning.because,
                frames,
                threading.current_thread().name,
                beginning.mode,
                self._device.stream(),
            )
        )

    def ends(self, capture: Capture, raised: BaseException | None, frame: FrameType) -> None:
        """``capture_end`` is about to be called, by ``frame``. ``raised``: what the captured code
        did."""
        capture.read_ns = _now()
        if capture.chain:
            capture.captures = _without_helpers(capture.chain, frame)
        with self._journal.protected():
            capture.read()
        if raised is not None:
            code = caller_of_cgtool(frame)
            capture.is_left = code is not None and package_part(code.co_filename) == GRAPHS
            _leave_out_our_frames(raised)
        capture.free_bytes = self._device.free_bytes()
        capture.end_ns = _now()

    def captured(self, capture: Capture, pool: tuple[int, int] | None, over_ns: int) -> None:
        """``capture_end`` returned at ``over_ns``."""
        self._over(capture, over_ns, self._device.free_bytes(), pool, None, None)
        self._write_later(capture)

    def raised(
        self, capture: Capture, error: BaseException, pool: tuple[int, int] | None, over_ns: int
    ) -> Callable[[], None]:
        """The captured code has raised, and ``capture_end`` returned at ``over_ns``. What this
        returns is to be called if the program replays the graph: it has handled the error."""
        free_bytes = self._device.free_bytes()
        reasons = self._reasons(capture, error, is_raised=True)
        failed = self._over(capture, over_ns, free_bytes, None, *reasons)

        def handled() -> None:
            replace, diagnosis = msgspec.structs.replace, None
            if capture.is_left and failed.diagnosis is not None:
                reason = f"{failed.diagnosis.reason}, and replays run only what comes before that"
                diagnosis = replace(failed.diagnosis, reason=reason)
            self._journal.append(replace(failed, pool=pool, failure=None, diagnosis=diagnosis))
            self._write_later(capture)

        return handled

    def failed(
        self, capture: Capture, error: BaseException | None, reason: str, *, is_raised: bool = False
    ) -> None:
        """There is no graph. Without an ``error``, ``capture_end`` was not called. ``is_raised``:
        the captured code raised it."""
        over_ns = _now()
        if error is None:
            capture.read_ns = capture.end_ns = over_ns
            self._over(capture, over_ns, None, None, reason, None)
        else:
            reasons = self._reasons(capture, error, is_raised=is_raised)
            self._over(capture, over_ns, None, None, *reasons)

    def _reasons(
        self, capture: Capture, error: BaseException, *, is_raised: bool
    ) -> tuple[str, Finding | None]:
        """Why a capture failed, as text and as a finding."""
        others = self._costs.others_entering(capture.start.time_ns)
        diagnosis = _diagnosis(error, capture.ended_threads(), others, nested=capture.nested)
        if diagnosis is not None and _has_unknown_cause(diagnosis):
            with self._journal.protected():
                diagnosis = capture.watch.with_cause(diagnosis)
        if diagnosis is None and is_raised:
            diagnosis = _own_exception(error)
        return _first_line(error) if diagnosis else error_text(error), diagnosis

    def _over(
        self,
        capture: Capture,
        over_ns: int,
        free_bytes: int | None,
        pool: tuple[int, int] | None,
        failure: str | None,
        diagnosis: Finding | None,
    ) -> Captured:
        capture.stop()
        before = capture.start.before
        reserved = self._device.reserved_bytes()
        done_ns = _now()
        segments = capture.segments
        captured = Captured(
            capture.number,
            (capture.read_ns - capture.begin_ns) + (over_ns - capture.end_ns),
            over_ns - capture.end_ns,
            capture.collector_ns,
            (capture.end_ns - capture.read_ns) + (done_ns - over_ns),
            pool,
            _growth(capture.start.reserved_bytes, reserved),
            failure,
            diagnosis,
            before.prepare_ns,
            before.warm_up_ns,
            self._costs.compiled_ns(capture.ident) - before.compiled_ns,
            # Other programs can give memory back meanwhile.
            _growth(free_bytes, capture.free_bytes),
            capture.captures[0][0].co_qualname if capture.captures else "",
            self._frames.frames_of(capture.captures),
            capture.overlaps,
            self._device.notes_ops_in_python(),
            sum(each.bytes for each in segments) or None,
            sum(each.used_bytes for each in segments) if segments else None,
        )
        self._journal.append(captured)
        with self._lock:
            if capture in self._in_progress:  # not if the process was forked meanwhile
                self._in_progress.remove(capture)
        return captured

    def _write_later(self, capture: Capture) -> None:
        if capture.contents is not None:
            self._later.put(partial(self._write_contents, capture, capture.contents))
            if _is_daemonic():
                self._later.do_all()

    def finish(self) -> None:
        """Write what waits until no capture is in progress."""
        with self._preparing:  # its thread must not run on while Python ends
            self._is_over = True
        self._later.finish()

    def _write_machine(self, environment: Callable[[], Environment]) -> None:
        with self._journal.protected():
            self._journal.append(Machine(environment()))

    def _write_contents(self, capture: Capture, contents: Callable[[GiveWay], Contents]) -> None:
        with self._journal.protected():
            start = _now()
            nodes, edges = contents(self._later.give_way)
            self._later.give_way()
            written = self._written
            tables = *self._table.after(*written[:2]), self._device.functions()[written[2] :]
            uses = capture.uses() if capture.memory else ()
            read = GraphRead(
                capture.number, nodes, edges, _now() - start, uses, tuple(capture.collectives)
            )
            if self._journal.append(Tables(*tables), read):
                new = map(len, tables)
                self._written = [before + more for before, more in zip(written, new, strict=True)]


def _without_helpers(began: Chain, end: FrameType) -> Chain:
    """The calls that lead to a capture, from the innermost function on that runs until ``end``
    calls ``capture_end``; empty if that is the one that began it, or there is none."""
    if any(each.f_code is began[0][0] and not _is_resumed(each) for each in callers(end)):
        return ()  # as nearly always
    running = {id(code) for code, _ in chain_or_waiting(end)}
    running -= {id(each.f_code) for each in callers(end) if _is_resumed(each)}
    at = next((at for at, (code, _) in enumerate(began) if id(code) in running), 0)
    return began[at:] if at else ()


def _is_resumed(frame: FrameType) -> bool:
    """Whether it is the generator of a context manager, at the end of the block, in which it did
    not run."""
    caller = frame.f_back
    return (
        caller is not None
        and bool(frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR))
        and caller.f_code.co_filename == contextlib.__file__
        and caller.f_code.co_name in ("__exit__", "__aexit__")
    )


def _is_daemonic() -> bool:
    """Whether the process is one that its parent ends by a signal, as that of a pool: after its
    last task it does nothing more."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.current_process().daemon


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]


def error_text(error: BaseException) -> str:
    """``ValueError: no weights at model.py:12``"""
    place = _place(error)
    return _first_line(error) + (f" at {place}" if place else "")


def _place(error: BaseException) -> str | None:
    """The user's line that raised an error: ``model.py:12``; None if that is not known."""
    frames = exception_frames(error)
    return f"{os.path.basename(frames[0].file)}:{frames[0].line}" if frames else None  # noqa: PTH119


def _ended_threads() -> list[threading.Thread]:
    """Threads that have ended but are still referenced, from a list that Python keeps."""
    known = getattr(threading, "_dangling", ())
    if len(known) <= threading.active_count():
        return []
    return [thread for thread in list(known) if thread.ident is not None and not thread.is_alive()]


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(after - before, 0)


def _leave_out_our_frames(error: BaseException) -> None:
    """Remove cgtool's frames, which are around the ops of a capture, from a traceback."""
    before = error.__traceback__
    while before is not None:
        following = before.tb_next
        while following is not None and _is_ours(following.tb_frame.f_code.co_filename):
            following = following.tb_next
        before.tb_next = following
        before = following


def _is_ours(file: str) -> bool:
    return package_part(file).startswith("/cgtool/")


def _diagnosis(
    raised: BaseException,
    ended: Sequence[threading.Thread],
    capturing: Sequence[str],
    phase: str = "capture",
    nested: Frames = (),
) -> Finding | None:
    """The meaning of the error that ended a capture, at the line that raised it, or that began
    another capture inside it (``nested``); None if it is not about the capture."""
    # Slow to import, and most programs never need it.
    from cgtool.detectors.capture_errors import API_ORDER_MISUSE, explain

    with contextlib.suppress(Exception):  # methods of the user's exception may raise
        finding = explain(raised, phase, ended, capturing, has_nested=bool(nested))
        if finding is not None:
            is_nested = bool(nested) and finding.code == API_ORDER_MISUSE
            frames = nested if is_nested else exception_frames(raised)
            return msgspec.structs.replace(finding, frames=frames)
    return None


def _has_unknown_cause(diagnosis: Finding) -> bool:
    """Whether the error tells only that some call has ended the capture."""
    from cgtool.detectors.capture_errors import FINALIZER_IN_CAPTURE

    return diagnosis.code == FINALIZER_IN_CAPTURE


def _own_exception(raised: BaseException) -> Finding | None:
    """The finding behind an exception that has another cause; None if it asks the program to
    end."""
    from cgtool.detectors.capture_errors import own_exception

    if not isinstance(raised, Exception):
        return None
    return msgspec.structs.replace(own_exception(raised), frames=exception_frames(raised))
