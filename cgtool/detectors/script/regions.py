"""Lines of the user's source: where a captured region ends, where a name is bound."""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterator
from functools import cache
from types import CodeType, FrameType

from cgtool.observe.frames import line_of


@cache
def tree_of(file: str) -> ast.Module | None:
    """None when the source cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def region_of(frame: FrameType) -> tuple[int, int]:
    """First and last line of the ``with`` statement that the frame is entering; the line itself to
    the end of the file when it is entering none."""
    line = line_of((frame.f_code, frame.f_lasti))
    tree = tree_of(frame.f_code.co_filename)
    found = (line, 1 << 30)
    if tree is None:
        return found
    for node in ast.walk(tree):
        if (isinstance(node, ast.With) and node.lineno <= line < node.body[0].lineno) or (
            isinstance(node, ast.With) and node.lineno == line == node.body[0].lineno
        ):
            found = (node.lineno, node.end_lineno or line)
    return found


_STORES = frozenset(("STORE_NAME", "STORE_FAST", "STORE_GLOBAL", "STORE_DEREF"))


def _stores(code: CodeType, name: str, kinds: frozenset[str]) -> list[tuple[int, int]]:
    """(offset, line) of each place that binds a name."""
    found: list[tuple[int, int]] = []
    for one in dis.get_instructions(code):
        if one.opname in kinds and one.argval == name:
            found.append((one.offset, line_of((code, one.offset))))
    return found


def bound_at(
    code: CodeType, name: str, after: int, now: int, attribute: bool = False
) -> int | None:
    """The line that most likely bound ``name`` between two offsets of one code object.

    ``after`` is where the capture began, ``now`` where the replay is called: the last binding
    before the replay, or, in a loop, the last one behind it.
    """
    stores = _stores(code, name, frozenset(("STORE_ATTR",)) if attribute else _STORES)
    later = [one for one in stores if after < one[0] <= now]
    if later:
        return later[-1][1]
    behind = [one for one in stores if one[0] > now]
    if behind:
        return behind[-1][1]
    return None


def nested(code: CodeType) -> Iterator[CodeType]:
    """A code object and those of the functions and classes in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from nested(one)
