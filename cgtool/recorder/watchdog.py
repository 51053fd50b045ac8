"""Writes the Python stacks of a process when ``cgtool run --watchdog`` sees that it hangs.

The thread that hangs cannot: it is in C++, which has given the GIL away. So another one waits for a
file to appear, and again each time that it changes.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep  # as it is before the program replaces it

from cgtool.model import clock
from cgtool.model.capture import Frame
from cgtool.model.journal import STACKS_WANTED, JournalWriter
from cgtool.model.records import Stacks
from cgtool.observe.frames import chain_of, frames_of, frames_of_other_threads

_PAUSE = 0.2
"""Seconds between two looks."""


def watch_for_hangs(
    folder: Path, journal: JournalWriter, entering: Callable[[], Sequence[str]]
) -> None:
    """Start the thread, which is not one of ``threading``'s; again in a process that was forked.
    ``entering``: as of ``CaptureCosts``."""
    with contextlib.suppress(RuntimeError):  # the process ends, or has too many
        _thread.start_new_thread(_watch, (folder / STACKS_WANTED, journal, entering))


def _watch(file: Path, journal: JournalWriter, entering: Callable[[], Sequence[str]]) -> None:
    seen = 0
    while True:
        sleep(_PAUSE)
        try:
            wanted = os.stat(file).st_mtime_ns  # noqa: PTH116
        except OSError:
            continue
        if wanted != seen:
            seen = wanted
            with journal.protected():
                journal.append(
                    Stacks(clock.time_ns(), _stacks(), journal.order[0], tuple(entering()))
                )


def _stacks() -> tuple[tuple[str, tuple[Frame, ...]], ...]:
    """Of all threads that run Python code, without that of PyTorch; the main thread first."""
    names = {each.ident: each.name for each in threading.enumerate()}
    main = threading.main_thread().ident
    others = sorted(frames_of_other_threads().items(), key=lambda each: each[0] != main)
    stacks = ((names.get(ident, ""), frames_of(chain_of(frame))) for ident, frame in others)
    return tuple((name, frames) for name, frames in stacks if frames)
