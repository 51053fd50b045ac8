"""What the graph trees of ``torch.compile`` know about their captures: the compiled function, the
warm-up, why a graph is captured again, and why none is captured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from cgtool.torch_compat import inductor
from cgtool.torch_compat.patches import Patches

_now = time.perf_counter_ns


class TreeCapture(NamedTuple):
    """A capture made by graph trees."""

    key: str = ""
    """``0/1 forward``; empty if graph trees do not capture."""
    because: str | None = None
    """Why the same function is captured again."""
    warm_up_ns: int | None = None
    """Host time of the warm-up iterations."""


class _Thread(threading.local):
    capture = TreeCapture()
    """What this thread is about to capture."""
    mismatch: Callable[[], str] | None = None
    """Returns why the last graph that was checked cannot be replayed; called only if it is captured
    again."""


class GraphTrees:
    """Follows graph trees from the import of their modules on, until ``patches`` are undone."""

    def __init__(self, patches: Patches, skipped: Callable[[str], None]) -> None:
        """``skipped`` is called with the reason if compiled code captures nothing."""
        self._thread = _Thread()
        self._skipped = skipped
        self._warm_ups: dict[tuple[int, Any], int] = {}
        """Host time, by manager and function."""
        for point, wrapper in (
            (inductor.SKIP, self._skip),
            (inductor.WARM_UP, self._warm_up),
            (inductor.CHECK, self._check),
            (inductor.RECORD, self._record),
        ):
            patches.wrap_later(*point, wrapper)

    def current(self) -> TreeCapture:
        """What this thread is about to capture."""
        return self._thread.capture

    def _skip(self, original: Any, message: str, *args: Any, **kwargs: Any) -> Any:
        self._skipped(message)
        return original(message, *args, **kwargs)

    def _warm_up(self, original: Any, manager: Any, inputs: Any, function: Any) -> Any:
        begin = _now()
        try:
            return original(manager, inputs, function)
        finally:
            known = id(manager), function
            self._warm_ups[known] = self._warm_ups.get(known, 0) + _now() - begin

    def _check(self, original: Any, node: Any, inputs: Any) -> Any:
        answer = original(node, inputs)
        self._thread.mismatch = None if inductor.fits(answer) else answer[1]
        return answer

    def _record(self, original: Any, manager: Any, inputs: Any, function: Any) -> Any:
        thread = self._thread
        mismatch, thread.mismatch = thread.mismatch, None
        thread.capture = TreeCapture(
            inductor.key_of(manager, function),
            None if mismatch is None else mismatch().strip(),
            self._warm_ups.pop((id(manager), function), None),
        )
        try:
            return original(manager, inputs, function)
        finally:
            thread.capture = TreeCapture()
