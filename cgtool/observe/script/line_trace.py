"""One trace function for all who follow the lines of a script.

Python has a single one for each thread. Functions are traced line by line only where somebody asks
for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import gettrace, settrace  # a script sees another `sys.gettrace`
from types import CodeType, FrameType
from typing import Any, Protocol

from cgtool.observe.frames import is_internal_file


class Follower(Protocol):
    """Who follows lines."""

    def follows(self, code: CodeType) -> bool:
        """Whether the lines of a function of the script matter. Asked at each of its calls."""

    def on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        """``call``, ``line``, ``return`` or ``exception``, as of ``sys.settrace``."""


class LineTrace:
    """The trace function of the thread of a script."""

    def __init__(self) -> None:
        self._followers: list[Follower] = []

    def start(self, follower: Follower, running: Iterable[FrameType]) -> bool:
        """Trace this thread, from the frames that run; False if it is traced by another one, such
        as a debugger."""
        if gettrace() is None:
            settrace(self)
        is_tracing = self.is_tracing
        if is_tracing and follower not in self._followers:
            self._followers.append(follower)
        for frame in running if is_tracing else ():
            if frame.f_trace is None and follower.follows(frame.f_code):
                frame.f_trace = self._trace
        return is_tracing

    @property
    def is_tracing(self) -> bool:
        """Whether the script has not set a trace function of its own, or ended all tracing."""
        return gettrace() is self

    def leave(self, follower: Follower) -> None:
        """This one follows no longer, until it starts again."""
        if follower in self._followers:
            self._followers.remove(follower)
        if not self._followers:
            self.stop()

    def stop(self) -> None:
        if self.is_tracing:
            settrace(None)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        # Most calls are PyTorch's own.
        if is_internal_file(code.co_filename):
            return None
        for follower in self._followers:
            if follower.follows(code):
                return self._trace(frame, event, argument)
        return None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        for follower in self._followers:
            follower.on_event(frame, event, argument)
        return self._trace
