"""Tables as lists of columns, and how they fit a terminal.

A screen declares each of its tables as a list of `Column`. The list decides the cells, their
alignment, which columns are left out (nothing to show, or no room), the legend of ``--explain``,
and the CSV. A new column is one entry in one list; CONTRIBUTING.md shows one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from io import StringIO
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

import rich.cells
import rich.table
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.rule import Rule
from rich.text import Text

from cgtool.analysis.units import UNITS, bytes_text, percent_text, time_text
from cgtool.render.text import cut, visible

Row = TypeVar("Row")
Wrap = Literal["words", "cut", "never"]

GOOD, WARNING, BAD = "green4", "dark_orange3", "red3"
"""At least 3.5 to 1 against black and against white; ANSI green and yellow vanish on white."""

_NARROWEST = 8
"""No column gets fewer cells than this while another column can give some."""
_WHOLE, _CUT = 40, 24
"""Cells that a text gets before it is broken into lines, and before its middle is left out, while a
column of less importance can be left out instead."""
_SAMPLE = 200
"""How many rows determine the widths."""
_BREAK = re.compile(r"[._/:,=-](?=\w)")
"""Characters after which a word too long for a line is broken, instead of inside a name."""


def plain(text: str, style: str = "") -> Text:
    """Text as it is: no markup is read in it, and control characters show as escapes.

    It goes on in the next line of a terminal, and in one line into a pipe.
    """
    return Text(visible(text), style=style)


def cell_len(text: str) -> int:
    """How many cells the text takes. rich would look at every character each time that a width is
    tried, and a kernel's name may have thousands; ``visible`` ASCII has one cell for each."""
    return len(text) if text.isascii() else rich.cells.cell_len(text)


def drawn(renderable: RenderableType, width: int, *, soft_wrap: bool = False) -> str:
    """A renderable as plain text, in so many cells."""
    buffer = StringIO()
    Console(
        file=buffer,
        width=width,
        highlight=False,
        color_system=None,
        soft_wrap=soft_wrap,
        force_jupyter=False,  # in a notebook rich would show it at once
    ).print(renderable)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def value_text(value: Any) -> str:
    """How a value is shown by default: ``12,345``, the text itself, — for None."""
    if value is None:
        return "—"
    return f"{value:,}" if isinstance(value, int) else str(value)


_UNITS = {"ns": time_text, "bytes": bytes_text, "share": percent_text}
"""How a value is shown, by the last word of its field's name."""


class Cell:
    """One text in a table, and how it adapts to a narrower column."""

    def __init__(self, text: str, style: str = "", wrap: Wrap = "words") -> None:
        self.text = visible(text)
        self.style = style
        self.wrap = wrap
        self.width = cell_len(self.text)

    def lines(self, width: int) -> list[str]:
        """The text in a column of so many cells: words are broken at spaces, else after ``.``,
        ``_``, ``/`` and the like."""
        if self.wrap != "words":
            return [cut(self.text, max(width, 1)) if self.wrap == "cut" else self.text]
        lines: list[str] = []
        line = ""
        for word in self.text.split(" "):
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

    def longest(self, *, whole_words: bool = False) -> int:
        """Width of the longest piece that is broken only when nothing else is left to give."""
        if self.wrap != "words":
            return 0
        text = self.text if whole_words else _BREAK.sub(lambda match: f"{match[0]} ", self.text)
        return max(map(cell_len, text.split()), default=0)


def _break(word: str, width: int) -> int:
    most = max(width, 1)
    while most > 1 and cell_len(word[:most]) > width:
        most -= 1
    places = [match.end() for match in _BREAK.finditer(word, 0, most + 1) if match.end() <= most]
    return places[-1] if places else most


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table: everything that is known about it."""

    heading: str
    value: str | Callable[[Row], Any] = ""
    """The field of a row that holds the raw value (``costs.launch_ns``), or a function of the row:
    text, a number, a tuple of numbers, or None. By default the field is named as the heading.
    Columns of numbers are aligned to the right and never broken into lines."""
    format: Callable[[Any], str] | None = None
    """How the raw value is shown; by default as the unit in the name of its field says."""
    priority: int = 0
    """0: always shown. Else left out if there is no room, the largest number first."""
    wrap: Wrap = "words"
    """How to show a text too long for its column: continue it in the next line, leave out its
    middle, or keep the column as wide as the text."""
    narrowest: int = 0
    """Cells that a longer text gets at least while a column can be left out for it; 0 takes 40, of
    a text that is cut 24."""
    zero: bool = True
    """False: 0, and a tuple without elements, count as no value."""
    numeric: bool | None = None
    """Whether cells are aligned as numbers are; None: where the raw values are numbers."""
    style: Callable[[Row], str] | str = ""
    explanation: str = ""
    """An explanation of the heading; printed with ``--explain``."""
    shown: bool = True
    optional: bool = False
    """Left out if every cell of it is empty (shown as "" or —)."""
    name: str = ""
    """The heading in CSV, if it differs from the one on the screen."""
    unit: str = ""
    """The unit of the raw value; by default the one that ``text`` converts from."""
    parts: tuple[str, ...] = ()
    """Names of the elements of raw values that are tuples; in CSV, each has a column. A tuple of
    one element stands for all."""

    def csv_headings(self) -> list[str]:
        """``["replay (ns)"]``, ``["95% CI low", "95% CI high"]``."""
        heading, unit = self.name or self.heading, self.unit or UNITS.get(self.text, "")
        headings = [f"{heading} {part}".strip() for part in self.parts or ("",)]
        return [f"{heading} ({unit})" if unit else heading for heading in headings]

    def csv_values(self, row: Row) -> Sequence[Any]:
        """The raw value, or its elements."""
        value = self.cell(row)
        if not self.parts:
            return [value]
        values = (None,) if value is None else value
        return values if len(values) > 1 else values * len(self.parts)

    @property
    def _field(self) -> str:
        """The field of a row; empty where a function computes the value."""
        if callable(self.value):
            return ""
        return self.value or self.heading.replace(" ", "_")

    @cached_property
    def cell(self) -> Callable[[Row], Any]:
        """Reads the raw value of a row."""
        read = self.value if callable(self.value) else attrgetter(self._field)
        return read if self.zero else lambda row: read(row) or None

    @cached_property
    def text(self) -> Callable[[Any], str]:
        """Shows a raw value."""
        return self.format or _UNITS.get(re.split("[._]", self._field)[-1], value_text)

    def is_numeric(self, rows: Sequence[Row]) -> bool:
        """Whether the column says so; else whether every value of these rows is a number or None,
        and some are not None."""
        if self.numeric is not None:
            return self.numeric
        values = [value for row in rows[:_SAMPLE] if (value := self.cell(row)) is not None]
        return bool(values) and all(map(_is_number, values))

    def is_empty(self, rows: Sequence[Row]) -> bool:
        """Whether no row has anything in this column."""
        return all(self.text(self.cell(row)) in ("", "—") for row in rows)

    def cells(self, rows: Sequence[Row], summaries: Sequence[Mapping[str, Any]]) -> list[Cell]:
        """The cells of all rows, and of last rows that are given by heading."""
        style = self.style
        cells = [
            self._cell(self.cell(row), style if isinstance(style, str) else style(row))
            for row in rows
        ]
        return cells + [
            self._cell(values[self.heading], "dim") if self.heading in values else Cell("")
            for values in summaries
        ]

    def _cell(self, value: Any, style: str) -> Cell:
        return Cell(self.text(value), style, "never" if _is_number(value) else self.wrap)

    def least(self, cell: Cell) -> int:
        """Width in which no name is broken and no text is cut to nothing."""
        if cell.wrap == "never":
            return cell.width
        room = self.narrowest or (_CUT if cell.wrap == "cut" else _WHOLE)
        # An optional column is dropped rather than shown with broken names.
        return max(min(cell.width, room), cell.longest(whole_words=self.priority > 0))


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Rows under a title. Columns that find no room are left out by their priority; where even the
    others do not fit, each row becomes a list. Tables of one name are one table in CSV."""

    title: str
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    summaries: Sequence[Mapping[str, Any]] = ()
    """Last rows, as raw values by heading: ``{"op": "12 more", "nodes": 40}``."""
    simulated: bool = False
    """Figures of the simulated device; the title says so."""
    name: str = ""
    """The name for ``--table``; by default derived from the title."""
    part: tuple[str, str] | None = None
    """A value that all rows share, where a screen has such a table for each graph: ``("graph",
    "forward")``. In CSV, the first column."""

    def __post_init__(self) -> None:
        headings = [column.heading for column in self.columns]
        for values in self.summaries:
            for heading in values:
                if heading not in headings:
                    raise ValueError(f"`{heading}` is not a column of `{self.title}`")

    @property
    def filled(self) -> list[Column[Row]]:
        """The columns that have something to show."""
        return [
            column
            for column in self.columns
            if column.shown and not (column.optional and column.is_empty(self.rows))
        ]

    def columns_at(self, width: int) -> list[Column[Row]]:
        """The columns that a terminal of so many cells has room for."""
        return [column for column, _ in self._layout(width)]

    def _layout(self, width: int) -> list[tuple[Column[Row], list[Cell]]]:
        """The columns that have room with no name broken, and their cells."""
        layout = [(column, column.cells(self.rows, self.summaries)) for column in self.filled]
        least = [
            max(cell_len(column.heading), *map(column.least, cells), 0) for column, cells in layout
        ]
        while sum(least) + 2 * (len(least) - 1) > width:
            at = max(range(len(layout)), key=lambda at: (layout[at][0].priority, at))
            if not layout[at][0].priority:
                break
            del layout[at], least[at]
        return layout

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        layout = self._layout(options.max_width)
        yield plain(f"{self.title} (simulated)" if self.simulated else self.title, "bold")
        rigid = [column.is_numeric(self.rows) or column.wrap == "never" for column, _ in layout]
        full = [
            max(cell_len(column.heading), *(cell.width for cell in cells), 0)
            for column, cells in layout
        ]
        # Gaps of three cells are easier to read, two are enough.
        gaps = max(len(full) - 1, 0)
        tight = sum(full) + 3 * gaps > options.max_width
        room = options.max_width - (2 if tight else 3) * gaps
        widths = _fit(layout, rigid, full, room)
        rows = zip(*(cells for _, cells in layout), strict=True)
        if sum(widths) > room:
            # Rich would make up for it by leaving columns out.
            yield Rule(characters="─", style="")
            for row in rows:
                yield _listed([column.heading for column, _ in layout], row, options.max_width)
            return
        grid = rich.table.Table(
            box=box.SIMPLE_HEAD,
            header_style="dim",
            pad_edge=False,
            show_edge=False,
            collapse_padding=tight,
        )
        for (column, _), width, no_wrap in zip(layout, widths, rigid, strict=True):
            justify: Literal["left", "right"] = "right" if column.is_numeric(self.rows) else "left"
            grid.add_column(
                column.heading, justify=justify, width=width, no_wrap=no_wrap, overflow="fold"
            )
        for row in rows:
            grid.add_row(
                *(
                    # Without no_wrap rich would crop 109,051,904 to 109,051,90.
                    Text("\n".join(cell.lines(width)), cell.style, overflow="fold", no_wrap=False)
                    for cell, width in zip(row, widths, strict=True)
                )
            )
        yield grid


def _listed(headings: Sequence[str], row: Sequence[Cell], width: int) -> Text:
    """A row as ``backward, nodes 140, replay 624 us``, its further lines indented."""
    facts = [
        f"{heading} {cell.text}".strip() if at else cell.text
        for at, (heading, cell) in enumerate(zip(headings, row, strict=True))
        if cell.text
    ]
    return Text("\n  ".join(Cell(", ".join(facts)).lines(max(width - 2, 1))), overflow="fold")


def _fit(
    layout: Sequence[tuple[Column[Any], list[Cell]]], rigid: list[bool], full: list[int], room: int
) -> list[int]:
    """Widths that together have room, narrowed where it costs the fewest lines: the one long name
    in a column is broken before the twenty short ones in another."""
    broken = [
        width if fixed else max(_NARROWEST, cell_len(column.heading))
        for (column, _), width, fixed in zip(layout, full, rigid, strict=True)
    ]
    # What a column cannot get in the end need not be taken from it cell by cell.
    floors = list(map(min, full, broken))
    widths = [
        min(width, max(floor, room - (sum(floors) - floor)))
        for width, floor in zip(full, floors, strict=True)
    ]
    # Names are broken inside only when nothing else is left to give.
    whole = [
        max(least, *(cell.longest() for cell in cells), 0)
        for (_, cells), least in zip(layout, broken, strict=True)
    ]

    @cache
    def heights(at: int, width: int) -> list[int]:
        return [len(cell.lines(width)) for cell in layout[at][1][:_SAMPLE]]

    def lines(narrowed: int) -> int:
        every = [heights(at, width - (at == narrowed)) for at, width in enumerate(widths)]
        return sum(map(max, zip(*every, strict=True)))

    while sum(widths) > room:
        able = [at for at, least in enumerate(whole) if widths[at] > least] or [
            at for at, least in enumerate(broken) if widths[at] > least
        ]
        if not able:
            break
        widths[min(able, key=lambda at: (lines(at), -widths[at]))] -= 1
    return widths


class Screen:
    """The output of a command: tables, lines and notes, one below the other."""

    def __init__(self, *, simulated: bool = False, explain: bool = False) -> None:
        self.simulated = simulated
        self.explain = explain
        self.parts: list[RenderableType] = []
        self.tables: list[Table[Any]] = []
        """Tables without rows, too."""

    def table(
        self,
        title: str,
        columns: Sequence[Column[Row]],
        rows: Sequence[Row],
        summaries: Sequence[Mapping[str, Any]] = (),
        *,
        name: str = "",
        part: tuple[str, str] | None = None,
    ) -> None:
        """A table, as ``add`` prints it."""
        name = name or title.lower()
        self.add(Table(title, columns, rows, summaries, self.simulated, name, part))

    def add(self, table: Table[Any]) -> None:
        """A table, with an empty line between it and what is above it; nothing without rows."""
        self.tables.append(table)
        if table.rows:
            self.parts += [""] if self.parts else []
            self.parts.append(table)

    def include(self, screen: Screen) -> None:
        """Another screen, below this one."""
        self.parts.append(screen)
        self.tables += screen.tables

    def line(self, text: str, style: str = "") -> None:
        """A line of text, without an empty line above it."""
        self.parts.append(plain(text, style))

    def about(self, columns: Iterable[Column[Any]], text: str) -> None:
        """``nodes, interval: text``, of the columns of the last table that are shown."""
        self.parts.append(_About(self.tables[-1], tuple(columns), text))

    def labeled(self, rows: Iterable[tuple[str, str]], style: str = "dim") -> None:
        """``name  text``, one per row: a second line of the text begins under the first."""
        if grid := list(rows):
            self.parts += _labeled(grid, style)

    def legend(self, more: Iterable[tuple[str, str]] = ()) -> None:
        """With ``--explain``: what the headings of the tables so far cannot say, and ``more``."""
        if self.explain:
            tables = [part for part in self.parts if isinstance(part, Table)]
            self.parts.append(_Legend(tables, dict(more)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.parts


@dataclass(frozen=True)
class _About:
    """A sentence about some columns of a table; nothing if none of them is shown."""

    table: Table[Any]
    columns: Sequence[Column[Any]]
    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self.table.columns_at(options.max_width)
        headings = [column.heading for column in shown if column in self.columns]
        if headings:
            yield plain(f"{', '.join(headings)}: {self.text}", "dim")


@dataclass(frozen=True)
class _Legend:
    """The explanations of the columns that are shown, one heading per line."""

    tables: Sequence[Table[Any]]
    more: dict[str, str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = {
            column.heading: column.explanation
            for table in self.tables
            for column in table.columns_at(options.max_width)
            if column.explanation
        }
        if lines := lines | self.more:
            yield ""
            yield from _labeled(lines.items(), "dim")


@dataclass(frozen=True)
class Hanging:
    """A lead, and beside it a text, whose further lines begin under its first."""

    lead: Text
    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.no_wrap:
            yield Text.assemble(self.lead, self.text)
            return
        grid = rich.table.Table.grid()
        grid.add_column(width=min(self.lead.cell_len, options.max_width // 2), overflow="fold")
        grid.add_column(overflow="fold")
        grid.add_row(self.lead, self.text)
        yield grid


def _labeled(rows: Iterable[tuple[str, str]], style: str) -> list[Hanging]:
    grid = list(rows)
    width = max(cell_len(visible(name)) for name, _ in grid) + 2
    return [
        Hanging(
            plain(f"{name}{' ' * (width - cell_len(visible(name)))}", style),
            plain(text, "dim" if style == "dim" else ""),
        )
        for name, text in grid
    ]
