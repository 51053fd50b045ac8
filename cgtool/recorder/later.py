"""Work that need not be done during a capture, done soon after it."""

from __future__ import annotations

import _thread
import contextlib
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from cgtool.model import clock

_PAUSE = 0.01
"""Seconds that the thread waits before it looks whether a capture is in progress."""
_QUIET = 0.05
"""Seconds after a capture in which the next one may follow: it would wait for the interpreter."""
_FEW = 16
"""Pieces of work that may wait for that."""
_LONGEST_END = 1.0
"""Seconds that the end of the process waits for the thread."""
_LINGERS = 60.0
"""Seconds that the thread stays when nothing waits. To start one takes a capture longer than all
else that it leaves for later."""
_MOST = 64
"""Pieces of work that may wait, and keep what captures have noted."""


class Later:
    """Does work on a thread of its own while no capture is in progress, or when asked for.

    The thread is not one of ``threading``'s, and ends some time after nothing waits.
    """

    def __init__(self, is_capturing: Callable[[], bool]) -> None:
        self._is_capturing = is_capturing
        self.renew()

    def renew(self) -> None:
        """Forget what waits: this process was forked."""
        self._waiting = deque[Callable[[], None]]()
        self._working = threading.RLock()
        """Held while a piece is done: the garbage collector may run in it, and ask for the rest."""
        self._has_thread = self._is_over = False
        self._signals = SimpleQueue[None]()
        """One for each piece that waits, and for the end: each ends a pause of the thread."""
        self._thread: int | None = None
        self._put_at = float("-inf")
        self._awaited = 0
        """How many wait for a piece of work."""
        self._starting = threading.RLock()

    def put(self, work: Callable[[], None]) -> None:
        """Have ``work`` done, which must not raise."""
        with self._starting:
            self._waiting.append(work)
            self._put_at = clock.monotonic()
            self._is_over = False
            if not self._has_thread:
                try:
                    _thread.start_new_thread(self._run, ())
                except RuntimeError:  # the process ends, or has too many
                    self.do_all()
                    return
                self._has_thread = True
            self._signals.put(None)
        if len(self._waiting) > _MOST:
            self._await_one()

    def give_way(self) -> None:
        """To be called often by work that takes milliseconds: on the thread, wait until no capture
        is in progress, or somebody waits for the work."""
        while get_ident() == self._thread and not self._awaited and self._is_busy():
            clock.sleep(_PAUSE)

    def _is_busy(self) -> bool:
        """Whether a capture is in progress, or may soon be."""
        may_follow = len(self._waiting) < _FEW and clock.monotonic() - self._put_at < _QUIET
        return may_follow or self._is_capturing()

    @contextlib.contextmanager
    def no_work(self) -> Iterator[None]:
        """Nothing is done while entered. Work in progress ends first."""
        working = self._working
        self._awaited += 1
        try:
            working.acquire()
        finally:
            self._awaited -= 1
        try:
            yield
        finally:
            working.release()

    def finish(self) -> None:
        """Do all that waits, and end the thread: the process may abort if one runs on while Python
        ends."""
        self.do_all()
        self._is_over = True
        self._signals.put(None)
        limit = clock.monotonic() + _LONGEST_END
        while self._has_thread and self._thread != get_ident() and clock.monotonic() < limit:
            clock.sleep(_PAUSE / 100)

    def do_all(self) -> None:
        """Do all that waits."""
        while self._await_one():
            pass

    def _await_one(self) -> bool:
        self._awaited += 1
        try:
            return self._do_one()
        finally:
            self._awaited -= 1

    def _do_one(self) -> bool:
        """Whether there was something to do."""
        with self._working:
            if not self._waiting:
                return False
            self._waiting.popleft()()
            return True

    def _run(self) -> None:
        self._thread = get_ident()
        while True:
            pause = _PAUSE  # the next capture may follow soon
            while self._waiting:
                if not self._is_over:
                    clock.sleep(pause)
                if self._is_over or not self._is_busy():
                    self._do_one()
                    pause = _PAUSE / 10
            if not self._is_signaled():
                with self._starting:
                    if not self._waiting:
                        self._has_thread = False
                        return

    def _is_signaled(self) -> bool:
        """Wait for a signal; False if none comes, and at the end."""
        try:
            self._signals.get(timeout=_LINGERS)
        except Empty:
            return False
        return not self._is_over
