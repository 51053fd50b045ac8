"""Columns of numbers and a tree of text as one compressed block that a page can hold.

The block is a header of JSON and the bytes of the columns behind it, deflated, as base64: letters,
digits, ``+``, ``/`` and ``=``, so nothing in a capture can end the element that it stands in, or be
read as markup. ``assets/data.js`` reads it.

A column of integers is as wide as its largest value needs, and is stored byte by byte (all lowest
bytes first), where it compresses to a fraction. None is -1 in a column of integers and NaN in one
of fractions.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any

from cgtool.model.files import encode_json
from cgtool.render.text import cut, visible

LONGEST = 4000
"""Characters of a text; the middle of a longer one is left out."""
_WIDTHS = ((1 << 8, "B"), (1 << 16, "H"), (1 << 32, "I"))
_LEVEL = 6


class Packer:
    """Collects the columns of a page."""

    def __init__(self) -> None:
        self._columns: dict[str, dict[str, Any]] = {}
        self._bytes: list[bytes] = []
        self._at = 0
        self._cut = 0

    def integers(self, name: str, values: Iterable[int | None], *, rising: bool = False) -> None:
        """Numbers from 0, None where there is none. ``rising``: neighbors are close to each other,
        so their differences are stored."""
        known = [0 if value is None else value + 1 for value in values]
        small = max(known, default=0) <= 1 << 31
        if rising:
            # A small difference of either sign is a small number: 0, -1, 1, -2, 2.
            steps = [b - a for a, b in zip([0, *known], known, strict=False)]
            known = [step << 1 if step >= 0 else (-step << 1) - 1 for step in steps]
        most = max(known, default=0)
        code = next((code for limit, code in _WIDTHS if most < limit), "d")
        self._add(name, array(code, known), rising=rising, small=small)

    def fractions(self, name: str, values: Iterable[float | None]) -> None:
        """Four bytes each."""
        nan = float("nan")
        self._add(name, array("f", [nan if value is None else value for value in values]))

    def _add(self, name: str, column: array[Any], **how: bool) -> None:
        if sys.byteorder == "big":
            column.byteswap()
        data, width = column.tobytes(), column.itemsize
        self._columns[name] = {
            "type": column.typecode, "length": len(column), "at": self._at, **how,
        }  # fmt: skip
        self._bytes += [data[byte::width] for byte in range(width)]
        self._at += len(data)

    def block(self, tree: dict[str, Any]) -> str:
        """All columns, together with ``tree``, whose strings are made inert, and with ``cut``, the
        number of strings that were too long."""
        texts = self._inert(tree)
        header = encode_json({"columns": self._columns, **texts, "cut": [self._cut, LONGEST]})
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        parts = [packer.compress(len(header).to_bytes(4, "little")), packer.compress(header)]
        parts += [packer.compress(data) for data in self._bytes]
        return b64encode(b"".join([*parts, packer.flush()])).decode()

    def _inert(self, value: Any) -> Any:
        """Plain data whose strings are safe to show: unprintable characters (control and bidi
        characters, lone surrogates) are escaped, and none is longer than ``LONGEST``."""
        if isinstance(value, str):
            self._cut += len(value) > LONGEST
            return visible(cut(value, LONGEST))
        if isinstance(value, dict):
            return {self._inert(key): self._inert(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._inert(inner) for inner in value]
        return value


class Interned:
    """A list in which every value is once."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def index(self, value: Any) -> int:
        """Where it is in the list."""
        return self._known.setdefault(value, len(self._known))

    @property
    def values(self) -> Sequence[Any]:
        """The list."""
        return list(self._known)
