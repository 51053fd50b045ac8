"""The source of a line, where the file is on this machine, and the part of it that is meant."""

from __future__ import annotations

import linecache
import os
from functools import lru_cache
from pathlib import Path

from cgtool.model.capture import Frame

_MOST_BYTES = 8 << 20


def source_line(frame: Frame, *, of_capture: bool = False) -> str:
    """The line as the file has it now, without indentation; empty where there is none.

    Only regular files of a sane size are read, and of what a capture names, which may be anybody's,
    only Python files.
    """
    if of_capture and not frame.file.endswith(".py"):
        return ""
    return linecache.getline(frame.file, frame.line).strip() if _readable(frame.file) else ""


def underlined(frame: Frame, columns: tuple[int, int]) -> tuple[int, int] | None:
    """Where in ``source_line(frame)`` an expression is: (first character, characters).

    ``columns`` are UTF-8 offsets in the line of the file, the second one 0 for an expression that
    ends in a later line. None where the file has changed so that they fit no more.
    """
    if not _readable(frame.file):
        return None
    line = linecache.getline(frame.file, frame.line).rstrip()
    encoded = line.encode()
    start, end = columns[0], columns[1] or len(encoded)
    indentation = len(line) - len(line.lstrip())
    before = len(encoded[:start].decode(errors="ignore"))
    characters = len(encoded[start:end].decode(errors="ignore"))
    if not indentation <= before < before + characters <= len(line):
        return None
    return before - indentation, characters


def shown_file(file: str) -> str:
    """Relative to the current folder where it is below it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.path.normpath(file)


@lru_cache(maxsize=1 << 12)
def _readable(file: str) -> bool:
    try:
        path = Path(file)
        return path.is_file() and path.stat().st_size <= _MOST_BYTES
    except (OSError, ValueError):
        # A name that no file can have.
        return False
