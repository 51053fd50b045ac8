"""Python's garbage collector. Imports nothing: see ``cgtool.model.program``."""

from __future__ import annotations

import gc


class CollectorPaused:
    """While entered, the garbage collector does not begin by itself, where cgtool makes many
    objects and no garbage: a collection would go through all of PyTorch, or of a large capture."""

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_error: object) -> None:
        if self._was_on:
            gc.enable()
