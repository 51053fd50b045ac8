"""A table as CSV: all columns, with raw values in the units that the headings name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from cgtool.render.table import Table
from cgtool.render.text import visible

_FORMULA = re.compile("[=+\\-@\uff1d\uff0b\uff0d\uff20]")
"""Text that begins with one of these is a formula in a spreadsheet; the last four are full-width
characters, for Japanese ones. https://owasp.org/www-community/attacks/CSV_Injection"""
_QUOTED = re.compile('[",;|]')
"""Includes the characters that separate cells in some languages."""


def encode_tables(tables: Sequence[Table[Any]]) -> bytes:
    """Encode tables with the same columns as one: a line of headings, then a line for each row."""
    lines: list[str] = []
    for table in tables:
        columns = [column for column in table.columns if column.shown]
        head, lead = ([], []) if table.part is None else ([table.part[0]], [table.part[1]])
        if not lines:
            headings = (heading for column in columns for heading in column.csv_headings())
            lines.append(_line([*head, *headings]))
        lines += (
            _line([*lead, *(value for column in columns for value in column.csv_values(row))])
            for row in table.rows
        )
    return "".join(lines).encode(errors="replace")


def _line(values: Iterable[Any]) -> str:
    return ",".join(map(_field, values)) + "\n"


def _field(value: Any) -> str:
    """Empty for None. Text that would be a formula gets an apostrophe in front, so that a
    spreadsheet shows it as text."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value).lower()
    text = visible(str(value))
    if _FORMULA.match(text):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text
