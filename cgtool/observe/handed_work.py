"""Work that code hands to other threads: functions that it submits to a pool, threads that it
starts.

It belongs to the line that handed it over: its ops are placed there.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cgtool.observe.frames import call_user, caller_of_cgtool, is_internal
from cgtool.observe.waiting import hand_over, whole_chain
from cgtool.torch_compat.patches import Patches

_installed = False


@contextlib.contextmanager
def followed_work() -> Iterator[None]:
    """While entered, the work that code hands to other threads is followed."""
    global _installed
    if _installed:
        yield
        return
    _installed = True
    try:
        with Patches() as patches:
            patches.wrap(ThreadPoolExecutor, "submit", _submit)
            patches.wrap(threading.Thread, "start", _start)
            yield
    finally:
        _installed = False


def _submit(original: Any, pool: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    return original(pool, _followed(function), *args, **kwargs)


def _start(original: Any, thread: threading.Thread) -> None:
    caller = caller_of_cgtool(sys._getframe(1))
    if caller is None or is_internal(caller):
        # A thread of a pool, which outlives the call that makes it.
        original(thread)
        return
    # Around `run`, the traceback of what the thread raises would show it.
    name = "_bootstrap_inner"
    run = _followed(getattr(thread, name))
    started = Patches()

    def run_once() -> None:
        started.close()
        run()

    started.set(thread, name, run_once)
    try:
        original(thread)
    except BaseException:
        started.close()
        raise


def _followed(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as the work of the line that runs now."""
    chain = whole_chain(sys._getframe(2))

    def run(*args: Any, **kwargs: Any) -> Any:
        outer = hand_over(chain)
        try:
            return call_user(function, *args, **kwargs)
        finally:
            hand_over(outer)

    return run
