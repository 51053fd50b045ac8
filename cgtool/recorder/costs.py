"""Host time that captures cost besides their own code: what is done before them, and compilers
that run inside."""

from __future__ import annotations

import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from cgtool.model import clock
from cgtool.model.ledger import CALLABLES
from cgtool.observe.waiting import waiting_thread
from cgtool.torch_compat.inductor import (
    COMPILED,
    COMPILERS,
    LOADERS,
    CompiledFunction,
    compilation,
    compiled_function,
    compiled_kernel,
)
from cgtool.torch_compat.patches import Patches

_now = clock.perf_counter_ns


class Before(NamedTuple):
    """Time spent before a capture."""

    prepare_ns: int | None
    """In ``torch.cuda.graph``, which waits for the device and empties caches. None without it."""
    warm_up_ns: int | None
    """Iterations of ``make_graphed_callables`` for this capture and those that follow it."""
    compiled_ns: int
    """In compilers so far, as far as it may belong to this capture."""


class _Thread(threading.local):
    """Times at which this thread began to prepare its next capture."""

    entered: int | None = None
    """When it entered ``torch.cuda.graph``."""
    called: int | None = None
    """When it called ``make_graphed_callables``, which captures after all of its warm-ups."""
    begins = False
    """It has called ``capture_begin`` since it entered ``torch.cuda.graph``."""
    compiling = False


class CaptureCosts:
    """Notes them from now on."""

    def __init__(
        self,
        patches: Patches,
        refused: Callable[[Any, Exception], None],
        not_followed: Callable[[Any], None],
        is_capturing: Callable[[int], bool],
        expected: Callable[[Any], None] = lambda _: None,
        compiled: Callable[[Callable[[], CompiledFunction | None]], None] = lambda _: None,
    ) -> None:
        """``refused`` is called with a ``torch.cuda.graph`` that raises before ``capture_begin``,
        and the error; ``not_followed`` with one that has begun without ``capture_begin``.
        ``is_capturing``: whether a thread captures. ``expected`` is called with one that will soon
        call ``capture_begin``, and with None when it has, or has failed; ``compiled`` with a
        function that returns what was compiled, on the thread that called it."""
        self._thread = _Thread()
        self._refused = refused
        self._not_followed = not_followed
        self._is_capturing = is_capturing
        self._expected = expected
        self._has_compiled = compiled
        self._compiled: dict[int, int] = {}
        """By the thread that captured meanwhile; 0 stands for all others."""
        self._entering = deque[list[Any]](maxlen=16)
        """The last calls of ``torch.cuda.graph.__enter__``: the thread, its name, and when it
        returned."""
        patches.wrap(torch.cuda.graph, "__enter__", self._enter)
        for owner in (torch.cuda, torch.cuda.graphs):
            patches.wrap(owner, CALLABLES, self._make_callables)
        for point in COMPILERS:
            patches.wrap_later(*point, self._compile)
        patches.wrap_later(*COMPILED, self._measured)

    def begins(self) -> Before:
        """A capture begins on this thread."""
        thread, now = self._thread, _now()
        entered, called = thread.entered, thread.called
        warm_up = None if called is None else (now if entered is None else entered) - called
        thread.called, thread.begins = None, True
        return Before(None if entered is None else now - entered, warm_up, self.compiled_ns())

    def compiled_ns(self, thread: int | None = None) -> int:
        """Time in compilers so far, on a thread, by default this one, and on threads that did not
        capture meanwhile."""
        compiled = self._compiled
        return compiled.get(thread or get_ident(), 0) + compiled.get(0, 0)

    def entering(self) -> list[str]:
        """The names of the threads that are in ``torch.cuda.graph.__enter__``."""
        return [name for _, name, left_ns in list(self._entering) if left_ns is None]

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
            # Not earlier: it must not initialize CUDA.
            if torch.cuda.is_initialized():
                self._expected(context)
            result = original(context)
        except Exception as error:
            if not thread.begins:
                self._refused(context, error)
            raise
        else:
            if not thread.begins:
                self._not_followed(context)
            return result
        finally:
            thread.entered, call[-1] = None, _now()
            self._expected(None)

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
        thread.compiling, begin, began_ns = True, _now(), clock.time_ns()
        try:
            return original(*args, **kwargs)
        finally:
            thread.compiling = False
            here = waiting_thread() or get_ident()
            owner = here if self._is_capturing(here) else 0
            duration_ns = _now() - begin
            self._compiled[owner] = self._compiled.get(owner, 0) + duration_ns
            # Those of a function that torch.compile compiles are part of it.
            if original.__name__ not in LOADERS and compilation() is None:
                kernel = partial(compiled_kernel, args, began_ns, duration_ns)
                self._has_compiled(kernel)

    def _measured(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._has_compiled(partial(compiled_function, *args, **kwargs))
        return original(*args, **kwargs)
