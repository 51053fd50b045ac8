"""Tables as lists of columns, and how they fit a terminal.

A screen declares each of its tables as a list of `Column`. The list decides the cells, their
alignment, which columns are left out (nothing to show, or no room), and the legend of
``--explain``. A new column is one entry in one list::

    GRAPHS: Sequence[Column[GraphRow]] = (
        Column("graph", lambda row: row.name),
        Column("nodes", lambda row: row.nodes),
        Column("replay", lambda row: row.replay_ns, time_text, explanation="GPU time of one"),
        Column("launch", lambda row: row.launch_ns, time_text, priority=1, optional=True),
    )
    parts = [Table("Graphs", GRAPHS, report.graphs)]
    parts += legend(parts, explain=explain)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import rich.table
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.rule import Rule
from rich.text import Text

from cgtool.render.text import cut

Row = TypeVar("Row")

GOOD, WARNING, BAD = "green4", "dark_orange3", "red3"
"""At least 3.5 to 1 against black and against white; ANSI green and yellow vanish on white."""

_NARROWEST = 8
"""No column gets fewer cells than this while another column can give some."""
_WHOLE, _CUT = 40, 24
"""Cells that a text gets before it is broken into lines, and before its middle is left out, while a
column of less importance can be left out instead."""
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


def value_text(value: Any) -> str:
    """How a value is shown by default: ``12,345``, the text itself, — for None."""
    if value is None:
        return "—"
    return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table: everything that is known about it."""

    heading: str
    cell: Callable[[Row], Any]
    """The raw value of a row: text, a number in the unit of the field it is from, a tuple of
    numbers, or None. Columns of numbers are aligned to the right and never broken into lines."""
    text: Callable[[Any], str] = value_text
    """How the raw value is shown."""
    priority: int = 0
    """0: always shown. Else left out where there is no room, the largest number first."""
    wrap: Literal["words", "cut", "never"] = "words"
    """Of a text too long for its column: continue it in the next line, leave out its middle, or
    keep the column as wide as the text."""
    narrowest: int = 0
    """Cells that a longer text gets at least while a column can be left out for it; 0 takes 40, of
    a text that is cut 24."""
    numeric: bool | None = None
    """Whether cells are aligned as numbers are; None: where the raw values are numbers."""
    style: Callable[[Row], str] | str = ""
    explanation: str = ""
    """What the heading cannot say; printed with ``--explain``."""
    shown: bool = True
    optional: bool = False
    """Left out where every cell of it is empty (shown as "" or —)."""

    def rendered(self, row: Row) -> RenderableType:
        """The cell of a row, ready to be printed."""
        style = self.style if isinstance(self.style, str) else self.style(row)
        return self._styled(self.cell(row), style)

    def _styled(self, value: Any, style: str) -> RenderableType:
        text = self.text(value)
        if self.wrap == "never" or _is_number(value):
            return plain(text, style)
        return Cut(text, style) if self.wrap == "cut" else Words(text, style)

    def summary(self, values: Mapping[str, Any]) -> RenderableType:
        """The cell of a last row that sums up the others, given by heading; empty if absent."""
        return self._styled(values[self.heading], "dim") if self.heading in values else ""

    def is_numeric(self, rows: Sequence[Row]) -> bool:
        """Whether the column says so, or every value of these rows is a number or None, and not
        all are None."""
        if self.numeric is not None:
            return self.numeric
        values = [self.cell(row) for row in rows[:_SAMPLE]]
        numbers = [_is_number(value) for value in values]
        return any(numbers) and all(
            number or value is None for number, value in zip(numbers, values, strict=True)
        )

    def is_empty(self, rows: Sequence[Row]) -> bool:
        """Whether no row has anything in this column."""
        return all(self.text(self.cell(row)) in ("", "—") for row in rows)


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Rows under a title. Columns that find no room are left out by their priority; where even the
    others do not fit, each row becomes a list."""

    title: str
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    summaries: Sequence[Mapping[str, Any]] = ()
    """Last rows, as raw values by heading: ``{"op": "12 more", "nodes": 40}``."""
    simulated: bool = False
    """Figures of the simulated device; the title says so."""
    _layouts: dict[int, _Layout] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        headings = [column.heading for column in self.columns]
        for values in self.summaries:
            for heading in values:
                if heading not in headings:
                    raise ValueError(f"`{heading}` is not a column of `{self.title}`")

    def available(self) -> list[Column[Row]]:
        """The columns of an unlimited width."""
        return [
            column
            for column in self.columns
            if column.shown and not (column.optional and column.is_empty(self.rows))
        ]

    def columns_at(self, width: int) -> list[Column[Row]]:
        """The columns that a terminal of so many cells has room for."""
        return self._layout(width).columns

    def _layout(self, width: int) -> _Layout:
        if width not in self._layouts:
            columns = self.available()
            cells = [self._cells(column) for column in columns]
            while not _fits(columns, cells, width) and any(one.priority for one in columns):
                least = max(range(len(columns)), key=lambda at: (columns[at].priority, at))
                del columns[least], cells[least]
            self._layouts[width] = _Layout(columns, cells)
        return self._layouts[width]

    def _cells(self, column: Column[Row]) -> list[RenderableType]:
        return [
            *(column.rendered(row) for row in self.rows),
            *(column.summary(values) for values in self.summaries),
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        layout = self._layout(options.max_width)
        title = f"{self.title} (simulated)" if self.simulated else self.title
        grid = _Grid(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
        grid.heading = plain(title, "bold")
        for column in layout.columns:
            numeric = column.is_numeric(self.rows)
            grid.add_column(
                column.heading,
                justify="right" if numeric else "left",
                no_wrap=numeric or column.wrap == "never",
                overflow="fold",
            )
        for row in zip(*layout.cells, strict=True):
            grid.add_row(*row)
        yield grid


@dataclass(frozen=True)
class _Layout:
    """The columns of one width, and the cells of each."""

    columns: list[Any]
    cells: list[list[RenderableType]]


def _fits(columns: Sequence[Column[Any]], cells: list[list[RenderableType]], width: int) -> bool:
    """Whether the columns have room with no name broken and no text cut to nothing."""
    least = [
        max(cell_len(column.heading), *(_least(column, cell) for cell in texts), 0)
        for column, texts in zip(columns, cells, strict=True)
    ]
    return sum(least) + 2 * (len(least) - 1) <= width


def _least(column: Column[Any], cell: Any) -> int:
    if isinstance(cell, Cut):
        return min(_width(cell), column.narrowest or _CUT)
    if isinstance(cell, Words):
        # A column that can be left out is not shown with broken names.
        words = cell.text.plain.split() if column.priority else cell.pieces()
        return max(min(_width(cell), column.narrowest or _WHOLE), *map(cell_len, words), 0)
    return _width(cell)


@dataclass(frozen=True)
class Legend:
    """What the headings of some tables cannot say, a heading a line, as far as they are shown."""

    tables: Sequence[Table[Any]]
    more: Sequence[tuple[str, str]] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = {
            column.heading: column.explanation
            for one in self.tables
            for column in one.columns_at(options.max_width)
            if column.explanation
        }
        lines.update(self.more)
        if lines:
            yield ""
            yield labelled(lines.items())


def legend(
    parts: Iterable[RenderableType], more: Iterable[tuple[str, str]] = (), *, explain: bool
) -> list[RenderableType]:
    """The legend of the tables among the parts of a screen, and lines of its own: with
    ``--explain``, else nothing."""
    if not explain:
        return []
    return [Legend([part for part in parts if isinstance(part, Table)], list(more))]


class Words:
    """A cell of names: breaks at spaces, else after ``.``, ``_``, ``/`` and the like."""

    def __init__(self, text: str, style: str = "") -> None:
        self.text = plain(text, style)

    def lines(self, width: int) -> list[str]:
        """The text in a column of so many cells."""
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
        return Measurement(min(width, _NARROWEST), width)


class Cut(Words):
    """A cell of one line: what does not fit is left out of its middle."""

    def lines(self, width: int) -> list[str]:
        """The text, or its two ends."""
        return [cut(self.text.plain, max(width, 1))]

    def pieces(self) -> list[str]:
        """Nothing needs room before it is cut."""
        return []


def _break(word: str, width: int) -> int:
    most = max(width, 1)
    while most > 1 and cell_len(word[:most]) > width:
        most -= 1
    places = [match.end() for match in _BREAK.finditer(word, 0, most + 1) if match.end() <= most]
    return places[-1] if places else most


class _Grid(rich.table.Table):
    """A grid that is narrowed where it costs the fewest lines: the one long name in a column is
    broken before the twenty short ones in another. Where that is not enough, which rich would make
    up for by leaving columns out, each row is a list. Its heading may be wider than itself."""

    heading: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [list(column.cells) for column in self.columns]
        full = [
            max(map(_width, (column.header, *cells_of_column)))
            for column, cells_of_column in zip(self.columns, cells, strict=True)
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


def _listed(columns: list[rich.table.Column], row: tuple[Any, ...], width: int) -> Text:
    """A row as ``backward, nodes 140, replay 624 us``, its further lines indented."""
    facts = []
    for at, (column, cell) in enumerate(zip(columns, row, strict=True)):
        text = " ".join(_text(cell).plain.split("\n"))
        if text:
            facts.append(f"{column.header} {text}".strip() if at else text)
    lines = Words(", ".join(facts)).lines(max(width - 2, 1))
    return Text("\n  ".join(lines), overflow="fold")


def _text(cell: Any) -> Text:
    return cell.text if isinstance(cell, Words) else cell if isinstance(cell, Text) else Text(cell)


def _fit(
    columns: list[rich.table.Column], cells: list[list[Any]], full: list[int], room: int
) -> list[int]:
    widths = list(full)
    # Names are broken inside only when nothing else is left to give.
    heads = [_width(column.header) for column in columns]
    broken = [
        full[at] if column.no_wrap else max(_NARROWEST, heads[at])
        for at, column in enumerate(columns)
    ]
    whole = [
        max(least, *map(_longest, cells_of_column), 0)
        for least, cells_of_column in zip(broken, cells, strict=True)
    ]
    sample = [cells_of_column[:_SAMPLE] for cells_of_column in cells]
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


def labelled(rows: Iterable[tuple[str, str]], style: str = "dim") -> RenderableType:
    """``name  text``, one a row: a second line of the text begins under the first."""
    grid = rich.table.Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, text in rows:
        grid.add_row(plain(name, style), plain(text, "dim" if style == "dim" else ""))
    return grid
