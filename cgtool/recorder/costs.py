"""Host time that captures cost besides their own code: what is done before them, and compilers
that run inside."""

from __future__ import annotations

import threading
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from cgtool.model.ledger import CALLABLES
from cgtool.torch_compat.inductor import COMPILERS
from cgtool.torch_compat.patches import Patches

_now = time.perf_counter_ns


class Before(NamedTuple):
    """Time spent before a capture."""

    prepare_ns: int | None
    """In ``torch.cuda.graph``, which waits for the device and empties caches. None without it."""
    warm_up_ns: int | None
    """Iterations of ``make_graphed_callables`` for this capture and those that follow it."""
    compiled_ns: int
    """In all compilers, in this process so far."""


class _Thread(threading.local):
    """What this thread is about to capture."""

    entered: int | None = None
    """When it entered ``torch.cuda.graph``."""
    called: int | None = None
    """When it called ``make_graphed_callables``, which captures after all of its warm-ups."""
    begins = False
    """It has called ``capture_begin`` since it entered ``torch.cuda.graph``."""
    compiling = False


class CaptureCosts:
    """Notes them from now on."""

    def __init__(self, patches: Patches, refused: Callable[[Any, Exception], None]) -> None:
        """``refused`` is called with a ``torch.cuda.graph`` that raises before ``capture_begin``,
        and the error."""
        self._thread = _Thread()
        self._refused = refused
        self.compiled_ns = 0
        self._entering = deque[list[Any]](maxlen=16)
        """The last calls of ``torch.cuda.graph.__enter__``: the thread, its name, and when it
        returned."""
        patches.wrap(torch.cuda.graph, "__enter__", self._enter)
        for owner in (torch.cuda, torch.cuda.graphs):
            patches.wrap(owner, CALLABLES, self._make_callables)
        for point in COMPILERS:
            patches.wrap_later(*point, self._compile)

    def begins(self) -> Before:
        """A capture begins on this thread."""
        thread, now = self._thread, _now()
        entered, called = thread.entered, thread.called
        warm_up = None if called is None else (now if entered is None else entered) - called
        thread.called, thread.begins = None, True
        return Before(None if entered is None else now - entered, warm_up, self.compiled_ns)

    def others_entering(self, since_ns: int) -> list[str]:
        """The names of other threads that were in ``torch.cuda.graph.__enter__`` since then."""
        return [
            name
            for thread, name, left_ns in list(self._entering)
            if thread != get_ident() and (left_ns is None or left_ns > since_ns)
        ]

    def _enter(self, original: Any, context: Any) -> Any:
        call: list[Any] = [get_ident(), threading.current_thread().name, None]
        self._entering.append(call)
        thread = self._thread
        thread.entered, thread.begins = _now(), False
        try:
            return original(context)
        except Exception as error:
            if not thread.begins:
                self._refused(context, error)
            raise
        finally:
            thread.entered, call[-1] = None, _now()

    def _make_callables(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._thread.called = _now()
        try:
            return original(*args, **kwargs)
        finally:
            self._thread.called = None

    def _compile(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        thread = self._thread
        if thread.compiling:
            return original(*args, **kwargs)
        thread.compiling, begin = True, _now()
        try:
            return original(*args, **kwargs)
        finally:
            thread.compiling = False
            self.compiled_ns += _now() - begin
