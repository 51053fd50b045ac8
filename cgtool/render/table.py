"""The look that all tables share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

from cgtool.render.text import cut

GOOD, DOUBT, BAD = "green4", "dark_orange3", "red3"
"""At least 3.5 to 1 against black and against white; ANSI green and yellow vanish on white."""

_LEAST = 8
"""No column is made narrower than this while another can give."""
_SAMPLE = 200
"""Rows that the widths are chosen by."""
_BREAK = re.compile(r"[._/:,=-](?=\w)")
"""Where a word that fits no line is broken, rather than in the middle of a name."""


def plain(text: str, style: str = "") -> Text:
    """Text as it is: no markup is read in it, and control characters show as escapes.

    Where a column is too narrow even so, the text goes on in the next line. Cropping, which is
    what rich does in a column that does not wrap, would show ``109,051,90`` for 109,051,904.
    """
    shown = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )
    return Text(shown, style=style, overflow="fold", no_wrap=False)


class Words:
    """A cell of names: breaks at spaces, else after ``.``, ``_``, ``/`` and the like."""

    def __init__(self, text: str, style: str = "") -> None:
        self.text = plain(text, style)

    def lines(self, width: int) -> list[str]:
        """What stands in a column of so many cells."""
        lines: list[str] = []
        line = ""
        for word in self.text.plain.split(" "):
            joined = f"{line} {word}" if line else word
            if cell_len(joined) <= width:
                line = joined
                continue
            if line:
                lines.append(line)
            line = word
            while cell_len(line) > width and len(line) > 1:
                at = _break(line, width)
                lines.append(line[:at])
                line = line[at:]
        return [*lines, line]

    def pieces(self) -> list[str]:
        """What is broken only when nothing else is left to give."""
        return _BREAK.sub(lambda match: f"{match[0]} ", self.text.plain).split()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = "\n".join(self.lines(options.max_width))
        yield Text(text, self.text.style, overflow="fold", justify=options.justify)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = self.text.cell_len
        return Measurement(min(width, _LEAST), width)


class Cut(Words):
    """A cell of one line: what does not fit is left out of its middle."""

    def lines(self, width: int) -> list[str]:
        """The text, or its two ends."""
        return [cut(self.text.plain, max(width, 1))]

    def pieces(self) -> list[str]:
        """Nothing asks for room before it is cut."""
        return []


def _break(word: str, width: int) -> int:
    most = max(width, 1)
    while most > 1 and cell_len(word[:most]) > width:
        most -= 1
    places = [match.end() for match in _BREAK.finditer(word, 0, most + 1) if match.end() <= most]
    return places[-1] if places else most


class Fitted(Table):
    """A table that is narrowed where it costs the fewest lines: the one long name in a column is
    broken before the twenty short ones in another. Where that is not enough, which rich would make
    up for by leaving columns out, each row is a list. Its heading may be wider than itself."""

    heading: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [list(column.cells) for column in self.columns]
        full = [
            max(map(_width, (column.header, *some)))
            for column, some in zip(self.columns, cells, strict=True)
        ]
        # Gaps of three cells are easier to read, two are enough.
        gaps = max(len(full) - 1, 0)
        self.collapse_padding = sum(full) + 3 * gaps > options.max_width
        room = options.max_width - (2 if self.collapse_padding else 3) * gaps
        widths = _fit(self.columns, cells, full, room)
        yield self.heading
        if sum(widths) > room:
            yield Rule(characters="─", style="")
            for row in zip(*cells, strict=True):
                yield _listed(self.columns, row, options.max_width)
            return
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)


def _listed(columns: list[Column], row: tuple[Any, ...], width: int) -> Text:
    """A row as ``backward, nodes 140, replay 624 us``, its further lines indented."""
    told = []
    for at, (column, cell) in enumerate(zip(columns, row, strict=True)):
        text = " ".join(_text(cell).plain.split("\n"))
        if text:
            told.append(f"{column.header} {text}".strip() if at else text)
    lines = Words(", ".join(told)).lines(max(width - 2, 1))
    return Text("\n  ".join(lines), overflow="fold")


def _text(cell: Any) -> Text:
    return cell.text if isinstance(cell, Words) else cell if isinstance(cell, Text) else Text(cell)


def _fit(columns: list[Column], cells: list[list[Any]], full: list[int], room: int) -> list[int]:
    widths = list(full)
    # Names are broken inside only when nothing else is left to give.
    heads = [_width(column.header) for column in columns]
    broken = [
        full[at] if column.no_wrap else max(_LEAST, heads[at]) for at, column in enumerate(columns)
    ]
    whole = [
        max(least, *(_longest(cell) for cell in some), 0)
        for least, some in zip(broken, cells, strict=True)
    ]
    sample = [some[:_SAMPLE] for some in cells]
    known: dict[tuple[int, int], list[int]] = {}

    def heights(column: int, width: int) -> list[int]:
        if (column, width) not in known:
            known[column, width] = [
                len(cell.lines(width)) if isinstance(cell, Words) else 1 for cell in sample[column]
            ]
        return known[column, width]

    def lines(changed: int) -> int:
        every = [heights(at, width - (at == changed)) for at, width in enumerate(widths)]
        return sum(max(row) for row in zip(*every, strict=True))

    while sum(widths) > room:
        able = [at for at, least in enumerate(whole) if widths[at] > least] or [
            at for at, least in enumerate(broken) if widths[at] > least
        ]
        if not able:
            break
        widths[min(able, key=lambda at: (lines(at), -widths[at]))] -= 1
    return widths


def _longest(cell: Any) -> int:
    """Of the pieces that a cell can be broken into without breaking a name."""
    return max(map(cell_len, cell.pieces()), default=0) if isinstance(cell, Words) else 0


def _width(cell: Any) -> int:
    if isinstance(cell, Words):
        return cell.text.cell_len
    return max((cell_len(line) for line in str(cell).splitlines()), default=0)


def table(title: str, *columns: str | tuple[str, str], simulated: bool = False) -> Fitted:
    """A table under its title; a column given as (name, "right") or
    (name, "left") is never broken into lines. The title of what was ``simulated`` says so."""
    made = Fitted(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    made.heading = plain(f"{title} (simulated)" if simulated else title, "bold")
    for column in columns:
        if isinstance(column, tuple):
            made.add_column(
                column[0], justify="left" if column[1] == "left" else "right", no_wrap=True
            )
        else:
            made.add_column(column, overflow="fold")
    return made


def add(made: Table, *cells: Any) -> None:
    """A row; strings are shown as they are."""
    made.add_row(
        *(
            (plain(cell) if made.columns[at].no_wrap else Words(cell))
            if isinstance(cell, str)
            else cell
            for at, cell in enumerate(cells)
        )
    )


def explained(rows: Iterable[tuple[str, str]], style: str = "dim") -> RenderableType:
    """What the words above mean, one a row: a second line begins under the first."""
    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    made.add_column()
    for name, text in rows:
        made.add_row(plain(name, style), plain(text, "dim" if style == "dim" else ""))
    return made
