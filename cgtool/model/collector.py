"""Python's garbage collector. Imports nothing: see ``cgtool.model.program``."""

from __future__ import annotations

import gc


class CollectorPaused:
    """While entered, the garbage collector does not begin by itself, where cgtool makes many
    objects and no garbage: a collection would go through all of PyTorch, or of a large capture.

    ``freeze``: what exists at the end is never collected, in a process that will end soon."""

    def __init__(self, *, freeze: bool = False) -> None:
        self._freeze = freeze

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_error: object) -> None:
        if self._freeze:
            gc.freeze()
        if self._was_on:
            gc.enable()
