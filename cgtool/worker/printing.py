"""Where a worker prints: to the standard error of the process that asks, as that has it now."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def descriptor() -> Iterator[int]:
    """A descriptor for what the code under test prints.

    ``sys.stderr`` may stand for none (``pytest --capture=sys``, ``redirect_stderr``, a notebook): a
    file takes it then, and what is in it is told afterwards.
    """
    own = _own()
    if own is not None:
        yield own
        return
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        try:
            yield file.fileno()
        finally:
            file.seek(0)
            # Who has closed the stream, or has none, wants to hear nothing.
            with contextlib.suppress(AttributeError, ValueError, OSError):
                shutil.copyfileobj(file, sys.stderr)


def _own() -> int | None:
    try:
        return sys.stderr.fileno()
    except (AttributeError, ValueError, OSError):
        return None
