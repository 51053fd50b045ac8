"""The thread for which a thread works: autograd's threads run work for the one that waits.

On a GPU, a backward runs on a thread of autograd's, while the thread that called it waits.
"""

from __future__ import annotations

import sys
import threading
from _thread import get_ident
from types import FrameType

from cgtool.observe.frames import (
    Chain,
    chain_of,
    frames_of_other_threads,
    outermost_code,
    package_part,
)
from cgtool.torch_compat.private import BACKWARD, current_graph_task

_last: tuple[int, int | None] = -1, None
"""The last backward, by its number, and the thread that waits for it."""


def waiting_thread() -> int | None:
    """The thread that waits in a backward for this thread, which is one of autograd's; None on any
    other. If several wait, the main thread goes first: nothing says who waits for whom."""
    global _last
    task = current_graph_task()
    if task < 0:
        return None
    if _last[0] != task:
        _last = task, _waits_for_this()
    return _last[1]


def chain_or_waiting(frame: FrameType | None, thread: int | None = None) -> Chain:
    """``chain_of``; on a thread without code of the program's, that of the thread that waits for
    it: ``thread``, if it is known, or the one in a backward, or else the main thread."""
    chain = chain_of(frame)
    if not chain:
        thread = thread or waiting_thread() or threading.main_thread().ident
        chain = chain_of(frames_of_other_threads().get(thread or 0))
    return chain


def callers_of_backward() -> Chain:
    """The frames outside torch of who called the backward that is running, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_backward(frame):
        frame = frame.f_back
    return chain_or_waiting(frame)


def _waits_for_this() -> int | None:
    here, main = get_ident(), threading.main_thread().ident
    if here == main or outermost_code(sys._getframe()).co_filename == threading.__file__:
        return None  # a thread of the program's, which computes its own backward
    frames = frames_of_other_threads()
    waiting = [thread for thread, frame in frames.items() if _is_backward(frame)]
    return main if main in waiting else next(iter(waiting), None)


def _is_backward(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name == BACKWARD.name and package_part(code.co_filename).startswith("/torch/")
