"""Names from a capture as text in a picture. They may contain anything: quotes, markup, newlines,
control bytes, lone surrogates. The result shows them and is never read as markup.

The graphviz package's own ``quote`` and ``escape`` take ``<...>`` for markup, turn ``&lt;`` into
``<``, and let control bytes through into SVG, where they are not allowed.
"""

from __future__ import annotations

from functools import lru_cache
from html import escape


@lru_cache(maxsize=1 << 12)
def visible(text: str) -> str:
    """Text in which what does not print is an escape: ``\\n``, ``\\x1b``, ``\\udc80``."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


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
