"""Names and source lines as text: what a capture holds may be anything, quotes, markup, newlines,
control bytes, lone surrogates. The result shows it, and is never read as markup.

The graphviz package's own ``quote`` and ``escape`` take ``<...>`` for markup, turn ``&lt;`` into
``<``, and let control bytes through into SVG, where they are not allowed.
"""

from __future__ import annotations

import linecache
import os
from functools import lru_cache
from html import escape
from pathlib import Path

from cgtool.model.capture import Frame
from cgtool.model.notebook import is_cell

_MOST_BYTES = 8 << 20
"""The limit of a source file."""


class _Escapes(dict[int, str]):
    """The text shown for each character, for ``str.translate``."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        self[code] = character if character.isprintable() else repr(character)[1:-1]
        return self[code]


_ESCAPES = _Escapes()


@lru_cache(maxsize=1 << 12)
def visible(text: str) -> str:
    """Text in which what does not print is an escape: ``\\n``, ``\\x1b``, ``\\udc80``."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def machine_text(device: str, torch: str) -> str:
    """``NVIDIA H200, torch 2.11.0``; a program may end before it is known which PyTorch it has."""
    return f"{device}, torch {torch}" if torch else device


def cut(text: str, size: int) -> str:
    """At most ``size`` characters; the middle is left out, because both ends of a name matter."""
    if len(text) <= size:
        return text
    head = (size - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (size - 1 - head) :]}"


def tooltip(*lines: str) -> str:
    """A quoted DOT string for a tooltip of one or more lines."""
    return '"' + "\\n".join(_escaped(line) for line in lines) + '"'


@lru_cache(maxsize=1 << 12)
def _escaped(line: str) -> str:
    # `&` begins an entity, also inside quotes. Graphviz reads escapes in a tooltip twice: once
    # for line breaks, once for the names of objects.
    shown = visible(line).replace("&", "&amp;")
    return shown.replace("\\", "\\" * 4).replace('"', '\\"')


@lru_cache(maxsize=1 << 12)
def html_text(text: str) -> str:
    """Text inside an HTML-like label; never empty, because Graphviz refuses ``<B></B>``."""
    # `\\N` is the name of the node also here, and also when the backslash is an entity.
    return escape(visible(text)).replace("\\", "&#92;&#92;") or " "


def source_line(frame: Frame, *, of_capture: bool = False) -> str:
    """The line as the file has it now, without indentation; empty if there is none.

    Only regular files of a sane size are read, and of what a capture names, which may be anybody's,
    only Python files.
    """
    if of_capture and not _has_source(frame.file):
        return ""
    return linecache.getline(frame.file, frame.line).strip() if _readable(frame.file) else ""


def source_lines(file: str) -> list[str]:
    """All lines of a Python file that a capture names, as it is now; none if it cannot be read."""
    if not (_has_source(file) and _readable(file)):
        return []
    return [line.rstrip("\n") for line in linecache.getlines(file)]


def underlined(frame: Frame, columns: tuple[int, int]) -> tuple[int, int] | None:
    """Where in ``source_line(frame)`` an expression is: (first character, characters).

    ``columns`` are UTF-8 offsets in the line of the file, the second one 0 for an expression that
    ends in a later line. None if the file has changed so that they fit no more.
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
    """Relative to the current folder where it is below it; of the cell of a notebook, its name."""
    if is_cell(file):
        return file.rpartition("/")[2]
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.path.normpath(file)


def _has_source(file: str) -> bool:
    return file.endswith(".py") or is_cell(file)


def _readable(file: str) -> bool:
    # The cells of a notebook are files that only this process knows.
    known = linecache.cache.get(file, ())
    return (len(known) > 1 and known[0] <= _MOST_BYTES) or _is_small_file(file)


@lru_cache(maxsize=1 << 12)
def _is_small_file(file: str) -> bool:
    try:
        path = Path(file)
        return path.is_file() and path.stat().st_size <= _MOST_BYTES
    except (OSError, ValueError):
        # A name that no file can have.
        return False
