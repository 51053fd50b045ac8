"""Pauses the observers of a program while Dynamo or compiled code runs: guards and fake tensors see
what they see in a plain run."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType, ModuleType
from typing import Any

from cgtool.torch_compat import inductor
from cgtool.torch_compat.imports import after_import
from cgtool.torch_compat.patches import Patches, SwitchedPatches
from cgtool.torch_compat.private import EVAL_FRAME, call_points

Paused = Callable[[], AbstractContextManager[None]]


class Pauses:
    """``pause_in_compiled_code``, except in the code that Inductor generated, for a while and
    again: for each capture."""

    def __init__(self, patches: Patches, paused: Paused) -> None:
        """Compiled code is waited for until ``patches`` are undone."""
        self._patches = SwitchedPatches(patches)
        self._forget = pause_in_compiled_code(self._patches, paused, generated=False)

    def begin(self) -> None:
        self._forget()
        self._patches.switch_on()

    def end(self) -> None:
        self._patches.switch_off()


class _Call(threading.local):
    """The outermost compiled function that this thread runs."""

    frame: FrameType | None = None
    """Frame of the function of Dynamo's that calls it."""
    has_run = False
    pause: AbstractContextManager[None]

    def begin(self, frame: FrameType, paused: Paused) -> None:
        self.frame, self.has_run, self.pause = frame, False, paused()
        self.pause.__enter__()

    def end(self) -> None:
        self.frame = None
        self.pause.__exit__(None, None, None)


def pause_in_compiled_code(
    patches: Patches | SwitchedPatches,
    paused: Paused,
    compiles: Callable[[], None] = lambda: None,
    *,
    generated: bool = True,
) -> Callable[[], None]:
    """Enter ``paused()`` around compiled functions until ``patches`` are undone. ``compiles`` is
    called when code is compiled. Without ``generated``, not around the code that Inductor
    generated: it checks no guards.

    Returns a function that forgets which compiled functions run: ``patches`` that were switched
    off may have missed their ends.
    """
    call = _Call()

    def forget() -> None:
        nonlocal call
        call = _Call()

    def before_and_after(original: Callable[[Any], Any], value: Any) -> Any:
        result = original(value)
        caller = sys._getframe(2)
        if call.frame is None and caller.f_code.co_name != "__enter__":  # left in another frame
            call.begin(caller, paused)
        elif call.frame is caller:
            call.has_run = True
        return result

    def at_the_end(original: Callable[[Any], Any], value: Any) -> Any:
        result = original(value)
        if call.has_run and call.frame is sys._getframe(2):
            call.end()
        return result

    def run_generated(original: Callable[..., Any], *args: Any) -> Any:
        frame = call.frame
        if frame is None:
            return original(*args)
        call.end()
        try:
            return original(*args)
        finally:
            call.begin(frame, paused)

    @contextlib.contextmanager
    def compile_(original: Callable[..., Any], *args: Any) -> Iterator[None]:
        compiles()
        # A backward is compiled when it first runs, on autograd's thread.
        with paused(), original(*args):
            yield

    def follow_calls(module: ModuleType) -> None:
        points = call_points(module)
        if points is not None:
            patches.wrap(*points[0], before_and_after)
            patches.wrap(*points[1], at_the_end)

    patches.callback(after_import(EVAL_FRAME, follow_calls))
    patches.wrap_later(*inductor.COMPILATIONS, compile_)
    if not generated:
        patches.wrap_later(*inductor.RUN, run_generated)
    return forget


def can_pause() -> bool:
    """Whether this Dynamo, if it is imported, says when compiled code runs."""
    module = sys.modules.get(EVAL_FRAME)
    return module is None or call_points(module) is not None
