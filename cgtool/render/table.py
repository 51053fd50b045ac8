"""The look that all tables share."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text


def plain(text: str, style: str = "") -> Text:
    """Text as it is: no markup is read in it, and control characters show as escapes.

    Where a column is too narrow even so, the text goes on in the next line. Cropping, which is
    what rich does in a column that does not wrap, would show ``109,051,90`` for 109,051,904.
    """
    shown = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )
    return Text(shown, style=style, overflow="fold", no_wrap=False)


def table(title: str, *columns: str | tuple[str, str]) -> Table:
    """A table with a left-aligned title; a column given as (name, "right") or
    (name, "left") is never broken into lines."""
    made = Table(
        title=plain(title, "bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        header_style="dim",
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        if isinstance(column, tuple):
            justify: JustifyMethod = "left" if column[1] == "left" else "right"
            made.add_column(column[0], justify=justify, no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    return made


def add(made: Table, *cells: Any) -> None:
    """A row; strings are shown as they are."""
    made.add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in cells))
