"""What a list of columns decides: cells, alignment, what is left out, the legend."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO

import pytest
from rich.console import Console

from cgtool.analysis.graph.summary import summarize
from cgtool.model.capture_file import read
from cgtool.render import summary_table
from cgtool.render.table import Column, Screen, Table
from tests.recorded import ROOT


@dataclass(frozen=True)
class Graph:
    name: str
    nodes: int
    replay_ns: float | None = None
    streams: int | None = None


COLUMNS = [
    Column("graph", lambda row: row.name),
    Column("nodes"),
    Column("replay", "replay_ns", explanation="GPU time of one replay"),
]
ROWS = [Graph("forward", 50, 245e3), Graph("backward", 1140, 624e3)]


def text_of(renderable, width=80):
    buffer = StringIO()
    Console(file=buffer, width=width, color_system=None, highlight=False).print(renderable)
    return [line.rstrip() for line in buffer.getvalue().splitlines()]


def test_a_column_added_to_the_list_is_shown_and_left_out_first_where_there_is_no_room():
    added = Column("streams", lambda row: row.streams, priority=1)
    table = Table("Graphs", [*COLUMNS, added], [Graph("forward", 50, 245e3, 2)])
    assert text_of(table, 40)[1].split() == ["graph", "nodes", "replay", "streams"]
    assert text_of(table, 40)[3].split() == ["forward", "50", "245", "us", "2"]
    assert text_of(table, 25)[1].split() == ["graph", "nodes", "replay"]
    assert [column.heading for column in table.columns_at(25)] == ["graph", "nodes", "replay"]


def test_columns_are_left_out_by_priority_and_never_those_of_priority_0():
    columns = [
        Column("name", lambda row: row.name),
        Column("second", lambda row: "x" * 20, priority=1),
        Column("third", lambda row: "y" * 20, priority=2),
    ]
    table = Table("T", columns, ROWS)
    for width, headings in ((60, 3), (40, 2), (20, 1), (4, 1)):
        assert len(table.columns_at(width)) == headings
    assert [column.heading for column in table.columns_at(40)] == ["name", "second"]


def test_numbers_are_aligned_to_the_right_and_text_to_the_left():
    lines = text_of(Table("Graphs", COLUMNS, ROWS))
    assert lines[3:] == ["forward       50   245 us", "backward   1,140   624 us"]


def test_the_raw_value_of_a_cell_is_at_hand():
    assert [column.cell(ROWS[0]) for column in COLUMNS] == ["forward", 50, 245e3]


def test_an_optional_column_is_left_out_where_it_is_empty():
    streams = Column("streams", lambda row: row.streams, optional=True)
    assert "streams" not in text_of(Table("Graphs", [*COLUMNS, streams], ROWS))[1]
    rows = [*ROWS, Graph("other", 1, streams=3)]
    assert "streams" in text_of(Table("Graphs", [*COLUMNS, streams], rows))[1]


def test_last_rows_are_given_by_heading():
    table = Table("Graphs", COLUMNS, ROWS, [{"graph": "together", "replay": 869e3}])
    assert text_of(table)[-1].split() == ["together", "869", "us"]
    with pytest.raises(ValueError, match="`time` is not a column of `Graphs`"):
        Table("Graphs", COLUMNS, ROWS, [{"time": 1.0}])


def test_the_legend_is_printed_when_requested_and_explains_only_what_is_shown():
    hidden = Column("streams", lambda row: row.streams, optional=True, explanation="not needed")
    lines = {}
    for explain in (False, True):
        screen = Screen(explain=explain)
        screen.table("Graphs", [*COLUMNS, hidden], ROWS)
        screen.legend([("more", "and this")])
        lines[explain] = text_of(screen)
    assert lines[True][: len(lines[False])] == lines[False]
    added = lines[True][len(lines[False]) :]
    assert added == ["", "replay  GPU time of one replay", "more    and this"]


def test_a_text_keeps_its_narrowest_width_while_another_column_can_be_left_out():
    columns = [
        Column("reason", lambda row: "many short words that could be broken", narrowest=30),
        Column("file", lambda row: "some_file.py", priority=1),
    ]
    assert len(Table("T", columns, ROWS).columns_at(50)) == 2
    assert len(Table("T", columns, ROWS).columns_at(40)) == 1


def test_the_column_of_contributing_is_one_entry_in_one_list(monkeypatch):
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("```python column\n")[2]
    source = text.partition("```")[0]
    column = eval(source, {"Column": Column})
    summary = summarize(read(ROOT / "samples" / "captures" / "gan.cgt"))
    columns = [*summary_table.graph_columns(summary), column]
    monkeypatch.setattr(summary_table, "graph_columns", lambda summary: columns)
    wide, narrow = (
        "\n".join(text_of(summary_table.render(summary, explain=True), width))
        for width in (160, 80)
    )
    assert column.heading in wide
    assert "2.0 MiB" in wide.split("Nodes by module")[0].split("────")[-1]
    assert column.explanation in wide
    assert column.heading not in narrow
    assert column.explanation not in narrow
