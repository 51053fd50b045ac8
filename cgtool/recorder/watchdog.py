"""Writes the Python stacks of a process when ``cgtool run --watchdog`` sees that it hangs.

The thread that hangs cannot: it is in C++, which has given the GIL away. So another one waits for a
file to appear, and again each time that it changes.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
from pathlib import Path
from time import sleep  # as it is before the program replaces it

from cgtool.model import clock
from cgtool.model.capture import Frame
from cgtool.model.journal import STACKS_WANTED, JournalWriter, Stacks
from cgtool.observe.frames import callers, frame_of, frames_of_other_threads, package_part

_PAUSE = 0.2
"""Seconds between two looks."""
_DEEPEST = 64


class Watchdog:
    """The thread, which is not one of ``threading``'s."""

    def __init__(self, folder: Path, journal: JournalWriter) -> None:
        self._file = folder / STACKS_WANTED
        self._journal = journal
        self.start()

    def start(self) -> None:
        """Also in a process that was forked, which has no thread of its parent's."""
        self.writing = threading.RLock()
        """Held while stacks are written: to fork meanwhile would copy locks that are held."""
        with contextlib.suppress(RuntimeError):  # the process ends, or has too many
            _thread.start_new_thread(self._watch, (self.writing,))

    def _watch(self, writing: object) -> None:
        seen = 0
        while writing is self.writing:
            sleep(_PAUSE)
            try:
                wanted = os.stat(self._file).st_mtime_ns  # noqa: PTH116
            except OSError:
                continue
            if wanted != seen:
                seen = wanted
                with self.writing, self._journal.protected():
                    self._journal.append(Stacks(clock.time_ns(), _stacks()))


def _stacks() -> tuple[tuple[str, tuple[Frame, ...]], ...]:
    """Of all threads that run Python code, without cgtool's."""
    names = {each.ident: each.name for each in threading.enumerate()}
    main = threading.main_thread().ident
    stacks: list[tuple[bool, str, tuple[Frame, ...]]] = []
    for ident, frame in frames_of_other_threads().items():
        frames: list[Frame] = []
        for each in callers(frame):
            code = each.f_code
            if not package_part(code.co_filename).startswith("/cgtool/"):
                frames.append(frame_of((code, each.f_lasti)))
        if frames:
            stacks.append((ident != main, names.get(ident, ""), tuple(frames[:_DEEPEST])))
    stacks.sort(key=lambda each: each[0])
    return tuple((name, stack) for _, name, stack in stacks)
