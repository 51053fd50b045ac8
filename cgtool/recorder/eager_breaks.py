"""Which ops run outside graphs between two replays (``cgtool run --eager-breaks``).

A thread that replays has its own ops, and those of autograd's threads, counted between its replays.
All ops of the program are watched, which takes about eight microseconds an op. Those of compiled
code are not, nor those of threads that were there before PyTorch was imported.
"""

from __future__ import annotations

import threading
import weakref
from _thread import get_ident
from collections.abc import Callable
from types import FrameType
from typing import Any

from cgtool.model import clock
from cgtool.model.journal import COUNTER, Between, JournalWriter, WatchesOps
from cgtool.observe.compiled_code import pause_in_compiled_code
from cgtool.observe.frames import (
    Site,
    call_op,
    frames_of,
    is_internal_file,
    key_of,
)
from cgtool.observe.ops import op_name
from cgtool.observe.waiting import chain_or_waiting, waiting_thread
from cgtool.torch_compat import op_key
from cgtool.torch_compat.patches import Patches

_MOST = 20_000
"""The most counters of a process. Further ops are counted without line and op."""


class _Ran:
    """An op of one line, since the last replay."""

    __slots__ = ("chain", "count", "host", "op")

    def __init__(self, op: Any, chain: tuple[Site, ...]) -> None:
        self.op, self.chain = op, chain
        self.count = self.host = 0


class _Counter:
    """Calls of the same op, over all times that the program went from one graph to another."""

    def __init__(self, chunk: Any, offset: int, kept: object) -> None:
        """``kept`` must not be freed, because the counter is found by its id."""
        self._place, self._kept = (chunk, offset), kept
        self._counts = [0, 0, 0, 0]

    def add(self, count: int, host_ns: int) -> None:
        counts = self._counts
        counts[0] += count
        counts[1] += 1
        counts[3] += host_ns
        COUNTER.pack_into(*self._place, *counts)


class _Thread:
    """A thread that replays graphs, since its last replay."""

    __slots__ = ("__weakref__", "before", "ident", "ran", "since_ns")

    def __init__(self) -> None:
        self.ident = get_ident()
        self.before: int | None = None
        """The number of the graph that it replayed; None if that graph is not followed."""
        self.since_ns = 0
        self.ran: dict[tuple[int, ...], _Ran] = {}


class _This(threading.local):
    thread: _Thread | None = None


class EagerBreaks:
    """Watches ops from now on, until ``patches`` are undone."""

    def __init__(
        self,
        replaying_class: Any,
        number_of: Callable[[Any], int | None],
        is_capturing: Callable[[int], bool],
        journal: JournalWriter,
        patches: Patches,
    ) -> None:
        """``number_of``: returns the number of a graph that can be replayed; ``is_capturing``:
        whether a thread captures."""
        self._number_of = number_of
        self._is_capturing = is_capturing
        self._journal = journal
        self._start_over()
        pause_in_compiled_code(patches, op_key.paused)
        patches.wrap(replaying_class, "replay", self._replay)
        patches.enter_context(op_key.watch(self._observe))

    def forked(self) -> None:
        """A forked process has one thread, and the counters are the parent's."""
        self._start_over()

    def _start_over(self) -> None:
        self._journal.append(WatchesOps())
        self._lock = threading.Lock()
        self._counters: dict[tuple[int, ...], _Counter] = {}
        self._this = _This()
        self._threads = weakref.WeakValueDictionary[int, _Thread]()
        """The threads that run, by their identifiers."""

    def _thread(self) -> _Thread | None:
        """This thread; if it is one of autograd's, the one that waits for it."""
        thread = self._this.thread
        if thread is None and (waiting := waiting_thread()) is not None:
            thread = self._threads.get(waiting)
        return thread

    def _observe(
        self, op: Any, args: Any, kwargs: Any, run: Callable[..., Any], caller: FrameType | None
    ) -> Any:
        thread = self._thread()
        if (
            thread is None
            or thread.before is None
            or self._is_capturing(thread.ident)
            or getattr(op, "namespace", "") == "profiler"  # marks a range
        ):
            return call_op(run, args, kwargs)
        begin = clock.perf_counter_ns()
        try:
            return call_op(run, args, kwargs)
        finally:
            _note(thread, op, caller, clock.perf_counter_ns() - begin)

    def _replay(self, original: Any, graph: Any) -> None:
        thread = self._thread()
        if thread is None:
            thread = self._this.thread = self._threads[get_ident()] = _Thread()
        before, spent_ns = thread.before, clock.perf_counter_ns() - thread.since_ns
        ran, thread.ran = thread.ran, {}
        thread.before = None  # If the replay raises, no step ends or begins with it.
        original(graph)
        after = self._number_of(graph)  # Its first replay may have given it one.
        if before is not None and after is not None:
            with self._journal.protected():
                self._add(before, after, spent_ns, ran)
        thread.before, thread.since_ns = after, clock.perf_counter_ns()

    def _add(
        self, before: int, after: int, spent_ns: int, ran: dict[tuple[int, ...], _Ran]
    ) -> None:
        """The program went from one graph to another."""
        with self._lock:
            self._counter((before, after), None).add(1, spent_ns)
            for key, each in ran.items():
                self._counter((before, after, *key), each).add(each.count, each.host)

    def _counter(self, key: tuple[int, ...], ran: _Ran | None) -> _Counter:
        counter = self._counters.get(key)
        if counter is None and len(self._counters) >= _MOST and ran is not None:
            key, ran = (*key[:2], 0), _Ran(None, ())
            counter = self._counters.get(key)
        if counter is None:
            number = len(self._counters)
            op = "" if ran is None or ran.op is None else op_name(ran.op)
            frames = () if ran is None else frames_of(ran.chain)
            self._journal.append(Between(number, key[0], key[1], op, frames, is_op=ran is not None))
            place = self._journal.break_counter(number)
            counter = self._counters[key] = _Counter(*place, ran)
        return counter


def _note(thread: _Thread, op: Any, caller: FrameType | None, spent_ns: int) -> None:
    frame = caller
    while frame is not None and is_internal_file(frame.f_code.co_filename):
        frame = frame.f_back
    # Autograd's threads have no frame of the program's: that of the thread that waits.
    chain = () if frame is not None else chain_or_waiting(None)[:1]
    site = (frame.f_code, frame.f_lasti) if frame is not None else next(iter(chain), None)
    key = (id(op), *(() if site is None else key_of(site)))
    ran = thread.ran.get(key)
    if ran is None:
        ran = thread.ran[key] = _Ran(op, chain_or_waiting(frame))
    ran.count += 1
    ran.host += spent_ns
