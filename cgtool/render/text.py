"""Names and source lines as text: what a capture holds may be anything, quotes, markup, newlines,
control bytes, lone surrogates. The result shows it, and is never read as markup.

The graphviz package's own ``quote`` and ``escape`` take ``<...>`` for markup, turn ``&lt;`` into
``<``, and let control bytes through into SVG, where they are not allowed.
"""

from __future__ import annotations

import os
from functools import lru_cache
from html import escape
from pathlib import Path

from cgtool.model.notebook import is_cell


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


def underlined(line: str, columns: tuple[int, int]) -> tuple[int, int] | None:
    """Where in a source line, without its indentation, an expression is: (first character,
    characters).

    ``columns`` are UTF-8 offsets in the line, the second one 0 for an expression that ends in a
    later line. None if they do not fit.
    """
    line = line.rstrip()
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
