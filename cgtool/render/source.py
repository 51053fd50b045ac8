"""The source of a line, where the file lies on this machine."""

from __future__ import annotations

import linecache
from functools import lru_cache
from pathlib import Path

from cgtool.model.capture import Frame

_MOST_BYTES = 8 << 20


def source_line(frame: Frame, *, of_capture: bool = False) -> str:
    """The line as it stands in the file now; empty where there is none.

    Only regular files of a sane size are read, and of what a capture names, which may be anybody's,
    only Python files.
    """
    if of_capture and not frame.file.endswith(".py"):
        return ""
    return linecache.getline(frame.file, frame.line).strip() if _readable(frame.file) else ""


@lru_cache(maxsize=1 << 12)
def _readable(file: str) -> bool:
    try:
        path = Path(file)
        return path.is_file() and path.stat().st_size <= _MOST_BYTES
    except (OSError, ValueError):
        # A name that no file can have.
        return False
