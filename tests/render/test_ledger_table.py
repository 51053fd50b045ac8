"""The ledger of a program at 80 and 160 columns, against gold files."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from cgtool.analysis.ledger_report import ledger_report
from cgtool.analysis.pools import ProgramPoolRow
from cgtool.model.capture import Frame
from cgtool.model.ledger import LedgerGraph
from cgtool.render import ledger_table
from tests.builders import program, serving, timed_serving
from tests.render.test_tables import compare, text_of


def many_lines():
    """Forty lines of files with long names, and compiled functions."""
    folder = "/opt/conda/envs/serving/lib/python3.11/site-packages/some_serving_engine/workers"
    frames = [
        Frame(
            f"{folder}/decoder_with_a_rather_long_name_{at}.py", 1000 + at, "Runner.capture_model"
        )
        for at in range(40)
    ]
    entries = [
        LedgerGraph(
            0,
            at,
            "torch.compile" if at % 3 else "SomeRunnerOfTheEngine.capture_model.<locals>.capture",
            key=f"{at}/{at % 2} forward" if at % 3 else "",
            frames=(at,),
            capture_ns=at * 10**7 + 10**6,
            reserved_bytes=at << 21,
            replays=5**at % 100_003,
        )
        for at in range(40)
    ]
    return structs.replace(program(entries), frames=tuple(frames))


@pytest.mark.parametrize("width", [80, 160])
def test_the_lines_that_capture(width):
    compare("ledger", ledger_table.render(ledger_report(serving()), explain=True), width)


@pytest.mark.parametrize("width", [80, 160])
def test_a_row_for_each_graph(width):
    report = ledger_report(serving())
    compare("ledger-graphs", ledger_table.render(report, graphs=True), width)


@pytest.mark.parametrize("width", [80, 160])
def test_many_lines_with_long_names(width):
    compare("ledger-many", ledger_table.render(ledger_report(many_lines()), rows=20), width)


@pytest.mark.parametrize("width", [80, 160])
def test_gpu_times_of_replays(width):
    report = ledger_report(timed_serving())
    compare("ledger-times", ledger_table.render(report, explain=True), width)


@pytest.mark.parametrize("width", [80, 160])
def test_where_the_time_of_replays_and_captures_goes(width):
    report = ledger_report(timed_serving())
    compare("ledger-profile", ledger_table.render_times(report, explain=True), width)


def test_the_rows_that_are_not_shown_are_one():
    report = ledger_report(timed_serving())
    for screen in (
        ledger_table.render_times(report, rows=1),
        ledger_table.render(report, rows=1),
        ledger_table.render(report, rows=1, graphs=True),
    ):
        (rest,) = screen.tables[0].summaries
        replays = sum(row.replays for row in screen.tables[0].rows) + rest["replays"]
        assert replays == sum(row.replays for row in report.graphs)


@pytest.mark.parametrize("width", [80, 160])
def test_the_pools_of_a_program(width):
    report = ledger_report(timed_serving())
    compare("ledger-pools", ledger_table.render_pools(report, explain=True), width)


def test_memory_of_captures_at_once_is_marked():
    sizes = {"reserved_bytes": 2 << 20, "capture_ns": 1000}
    alone = LedgerGraph(0, 0, "alone", frames=(0,), replays=1, **sizes)
    both = LedgerGraph(0, 0, "both", frames=(1,), overlaps=True, **sizes)
    report = ledger_report(program([alone, both, both]))
    assert "up to 4.0 MiB wasted" in report.sentence
    (finding,) = report.findings
    assert finding.evidence[0] == "2 captures: 2.00 us and up to 4.0 MiB more reserved"
    (table, *_) = ledger_table.render(report).tables
    (column,) = (each for each in table.columns if each.heading == "at once")
    assert [cell.text for cell in column.cells(table.rows, ())] == ["—", "2"]


def test_where_graphs_were_captured():
    one = LedgerGraph(
        0, 0, "one", frames=(0,), replays=1, thread="MainThread", mode="global", stream=0x7F00
    )
    report = ledger_report(program([one, structs.replace(one, thread="engine", mode="")]))
    screen = ledger_table.render(report, graphs=True)
    (table,) = (each for each in screen.tables if each.name == "where")
    assert [column.heading for column in table.columns] == ["graph", "made by", "line", "thread"]
    assert [row.thread for row in table.rows] == ["MainThread", "engine"]
    assert any("all graphs: mode global, stream 0x7f00" in str(part) for part in screen.parts)
    (line,) = report.lines
    assert (line.thread, line.mode, line.stream) == (None, None, 0x7F00)
    alone = ledger_table.render(ledger_report(program([one])), graphs=True)
    (table,) = (each for each in alone.tables if each.name == "where")
    assert not table.rows


def test_pools_that_nothing_keeps_are_not_added_up():
    """Each was given back before the next one."""
    row = ProgramPoolRow("pool 1", 0, 1, "", 1, 3 << 20, 0, 3 << 20, None)
    small = structs.replace(row, name="pool 2", reserved_bytes=2 << 20)
    kept = structs.replace(row, name="pool 3", kept_by="1 graph", used_bytes=1 << 20)
    kept = structs.replace(kept, free_bytes=2 << 20)
    tensors = structs.replace(kept, name="pool 4", kept_by="tensors")
    report = ledger_report(timed_serving())

    def headline(*pools):
        screen = ledger_table.render_pools(replace(report, pools=pools))
        return text_of(screen, 160).splitlines()[0]

    assert headline(row) == "1 pool had 3.0 MiB when its last graph ended"
    ended = "2 pools had up to 3.0 MiB each when their last graphs ended"
    assert headline(small, row) == ended
    alive = "2 pools with 6.0 MiB, of which only later captures can use 4.0 MiB"
    assert headline(kept, tensors) == alive
    assert headline(row, kept, small, tensors) == f"{alive}; {ended}"
