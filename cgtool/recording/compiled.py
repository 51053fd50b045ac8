"""What the graph trees of ``torch.compile`` know of their captures: for which compiled function,
why again, and why not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from cgtool.recording.imports import after_import
from cgtool.torch_compat import inductor
from cgtool.torch_compat.patches import Patches


class _Recording(threading.local):
    """What this thread is about to capture."""

    key = ""
    because: str | None = None
    mismatch: Callable[[], str] | None = None
    """Says why the graph that was checked last does not fit; asked only if it is recorded anew."""


class GraphTrees:
    """Follows graph trees from the import of their modules on."""

    def __init__(self, patches: Patches, skipped: Callable[[str], None]) -> None:
        """``skipped`` is called with the reason where compiled code captures nothing."""
        self._recording = _Recording()
        self._patches = patches
        self._skipped = skipped
        after_import(inductor.SKIPS, self._follow_skips)
        after_import(inductor.TREES, self._follow_trees)

    def current(self) -> tuple[str, str | None]:
        """The key of the graph that this thread is about to capture, and why it is captured
        again."""
        return self._recording.key, self._recording.because

    def _follow_skips(self, module: ModuleType) -> None:
        def skip(original: Any, message: str, *args: Any, **kwargs: Any) -> Any:
            self._skipped(message)
            return original(message, *args, **kwargs)

        point = inductor.skip_point(module)
        if point is not None:
            self._patches.wrap(*point, skip)

    def _follow_trees(self, module: ModuleType) -> None:
        recording = self._recording

        def record(original: Any, manager: Any, inputs: Any, function: Any) -> Any:
            mismatch, recording.mismatch = recording.mismatch, None
            recording.because = None if mismatch is None else mismatch().strip()
            recording.key = inductor.key_of(manager, function)
            try:
                return original(manager, inputs, function)
            finally:
                recording.key, recording.because = "", None

        def check(original: Any, node: Any, inputs: Any) -> Any:
            answer = original(node, inputs)
            recording.mismatch = None if inductor.fits(answer) else answer[1]
            return answer

        points = inductor.points(module)
        if points is not None:
            self._patches.wrap(*points[0], record)
            self._patches.wrap(*points[1], check)
