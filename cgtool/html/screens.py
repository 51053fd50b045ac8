"""The tables of the commands' screens, for the page: the same columns with the same texts."""

from __future__ import annotations

from typing import Any

from cgtool.render.table import Column, Row, Screen, Table


def tables(screen: Screen) -> list[dict[str, Any]]:
    """Every table of a screen."""
    return [page_table(part) for part in screen.parts if type(part) is Table]


def page_table(table: Table[Any]) -> dict[str, Any]:
    """``columns``: heading, whether it has numbers, its explanation. A cell of ``rows`` is what it
    is sorted by (None: its text) and its text."""
    columns = table.filled
    return {
        "title": table.title,
        "columns": [
            [column.heading, column.is_numeric(table.rows), column.explanation]
            for column in columns
        ],
        "rows": [[_cell(column, row) for column in columns] for row in table.rows],
    }


def _cell(column: Column[Row], row: Row) -> tuple[float | None, str]:
    value = column.cell(row)
    return _number(value), column.text(value)


def _number(value: Any) -> float | None:
    if isinstance(value, tuple):
        return max(map(_number, value), key=lambda number: number or 0, default=None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
