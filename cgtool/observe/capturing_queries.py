"""Where code asks whether a stream is capturing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from cgtool.model.capture import Frames
from cgtool.observe.frames import chain_of, frames_of, is_internal
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import CAPTURING_QUERIES

Queries = Sequence[Frames]
"""Call chains that queried whether a stream is capturing, innermost first."""


@contextlib.contextmanager
def watch_capturing_queries(answer: bool | None = None) -> Iterator[Queries]:
    """Record the callers of ``is_current_stream_capturing``; ``answer`` replaces its result."""
    queries: list[Frames] = []

    def is_capturing(original: Callable[[], bool]) -> bool:
        caller = sys._getframe(2)
        if caller.f_code.co_name == "is_current_stream_capturing" and caller.f_back is not None:
            caller = caller.f_back
        # torch's own optimizers call it too; they refuse rather than branch.
        if not is_internal(caller.f_code):
            queries.append(frames_of(chain_of(caller)))
            if answer is not None:
                return answer
        return original()

    with Patches() as patches:
        for point in CAPTURING_QUERIES:
            patches.wrap(*point, is_capturing)
        yield queries
