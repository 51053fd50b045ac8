"""The tables of the commands' screens, for the page: the same columns with the same texts."""

from __future__ import annotations

from typing import Any

from cgtool.render.table import Screen, Table


def tables(screen: Screen) -> list[dict[str, Any]]:
    """Every table of a screen."""
    return [page_table(part) for part in screen.parts if type(part) is Table]


def page_table(table: Table[Any]) -> dict[str, Any]:
    """``columns``: heading, whether it has numbers, its explanation. A cell of ``rows`` is what it
    is sorted by (None: its text) and its text."""
    columns = [
        column
        for column in table.columns
        if column.shown and not (column.optional and column.is_empty(table.rows))
    ]
    values = [[column.cell(row) for column in columns] for row in table.rows]
    return {
        "title": table.title,
        "columns": [
            [column.heading, column.is_numeric(table.rows), column.explanation]
            for column in columns
        ],
        "rows": [
            [
                (_number(value), column.text(value))
                for column, value in zip(columns, row, strict=True)
            ]
            for row in values
        ],
    }


def _number(value: Any) -> float | None:
    if isinstance(value, tuple):
        return max(map(_number, value), key=lambda number: number or 0, default=None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
