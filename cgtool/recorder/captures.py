"""The captures of a process, in its journal: what each was spent on, and what it holds."""

from __future__ import annotations

import _thread
import contextlib
import inspect
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from types import FrameType
from typing import Any

import msgspec

from cgtool.model import clock
from cgtool.model.capture import Contents, Environment, Frames
from cgtool.model.collector import CollectorPaused
from cgtool.model.finding import Finding
from cgtool.model.journal import JournalWriter
from cgtool.model.ledger import CALLABLES, COMPILE
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
    frames_of,
    package_part,
)
from cgtool.observe.graphs import GRAPHS, Beginning
from cgtool.observe.waiting import chain_or_waiting
from cgtool.recorder.capture import Capture, Expected, Start
from cgtool.recorder.capture_failure import (
    diagnosis_of,
    error_text,
    first_line,
    has_unknown_cause,
    leave_out_our_frames,
    program_error,
)
from cgtool.recorder.costs import Before, CaptureCosts
from cgtool.recorder.later import Later
from cgtool.recorder.recorded_device import GiveWay, RecordedDevice

_now = clock.perf_counter_ns
_BEGINS = 5_000_000_000
"""Nanoseconds after which a capture that was about to begin is taken for one that never did."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgtool.observe.origins import OriginTable


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
        diagnosis = diagnosis_of(error, (), [each.thread for each in self._in_progress], phase)
        self._journal.append(Captured(number, failure=first_line(error), diagnosis=diagnosis))

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
            leave_out_our_frames(raised)
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
        diagnosis = diagnosis_of(error, capture.ended_threads(), others, nested=capture.nested)
        if diagnosis is not None and has_unknown_cause(diagnosis):
            with self._journal.protected():
                diagnosis = capture.watch.with_cause(diagnosis)
        if diagnosis is None and is_raised:
            diagnosis = program_error(error)
        return first_line(error) if diagnosis else error_text(error), diagnosis

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


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(after - before, 0)
