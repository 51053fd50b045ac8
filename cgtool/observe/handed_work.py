"""Work that code hands to other threads: functions that it submits to a pool, threads that it
starts.

It belongs to the line that handed it over: its ops are placed there, and a profile that follows the
code follows it too.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

from cgtool.observe.frames import call_user, caller_of_cgtool, is_internal
from cgtool.observe.waiting import hand_over, whole_chain
from cgtool.torch_compat.patches import Patches, set_profile


class FollowingProfile(ABC):
    """A profile that follows the work that its thread hands to others."""

    @abstractmethod
    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """As ``sys.setprofile`` calls it."""

    @abstractmethod
    def hands_over(self, function: Any) -> None:
        """The code hands a function to another thread."""


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
    run = _followed(getattr(thread, name), getattr(thread, "_target", None) or thread.run)
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


def _followed(function: Callable[..., Any], target: Any = None) -> Callable[..., Any]:
    """``function`` as the work of the line that runs now. ``target``: what it will call."""
    chain, profile = whole_chain(sys._getframe(2)), sys.getprofile()
    follows = profile if isinstance(profile, FollowingProfile) else None
    if follows is not None:
        follows.hands_over(target or function)

    def run(*args: Any, **kwargs: Any) -> Any:
        outer, before = hand_over(chain), sys.getprofile()
        if follows is not None:
            sys.setprofile(follows)
        try:
            return call_user(function, *args, **kwargs)
        finally:
            set_profile(before)
            hand_over(outer)

    return run
