"""Tables made from recorded captures, at 80 and 160 columns, against gold files.

`UPDATE_GOLD=1 pytest tests/render/test_tables.py` writes them again: look at the difference.

Captures of an H200 lie in samples/captures. `mlp-separate-simulated.cgt` beside the gold files was
made by `cgtool capture samples/mlp.py:build --device simulated --pool separate`.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import rich.cells
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cgtool.analysis.graph.summary import summarize
from cgtool.analysis.pools import pools_report
from cgtool.analysis.timing.bench import bench_report
from cgtool.model.capture import Graph
from cgtool.model.capture_file import read
from cgtool.model.finding import Capability
from cgtool.model.measurements import Bench, Clock, Samples
from cgtool.render import bench_table, pools_table, report_table, summary_table
from cgtool.render.table import Cell, Column, Table, cell_len
from cgtool.render.text import visible
from tests.builders import capture
from tests.gold_files import GOLD, check

CAPTURES = Path(__file__).resolve().parent.parent.parent / "samples" / "captures"
SAMPLES = {name: CAPTURES / f"{name}.cgt" for name in ("transformer", "gan", "two_streams")}
SAMPLES["simulated"] = GOLD / "captures" / "mlp-separate-simulated.cgt"


def text_of(renderable, width):
    buffer = StringIO()
    Console(file=buffer, width=width, color_system=None, highlight=False).print(renderable)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def of_rows(rows, *headings, title="T"):
    columns = [Column(heading, lambda row, at=at: row[at]) for at, heading in enumerate(headings)]
    return Table(title, columns, rows)


def compare(name, renderable, width):
    text = text_of(renderable, width)
    assert max(map(len, text.splitlines())) <= width
    check(f"tables/{name}-{width}.txt", text)


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("view", ["summary", "pools"])
def test_table(view, sample, width):
    recorded = read(SAMPLES[sample])
    if view == "summary":
        compare(f"{sample}-summary", summary_table.render(summarize(recorded)), width)
    else:
        compare(f"{sample}-pools", pools_table.render(pools_report(recorded)), width)


@pytest.mark.parametrize("width", [80, 160])
def test_pools_of_several_callables_by_module_in_bytes(width):
    report = pools_report(read(SAMPLES["gan"]), by="module")
    compare("gan-pools-by-module-exact", pools_table.render(report, exact=True), width)


@pytest.mark.parametrize("width", [80, 160])
def test_bench_of_figures_made_up_by_this_test(width):
    """No GPU measured these: they are in the shape that one leaves, with a phase that gains, one
    that loses, and one that nobody can tell."""

    def samples(phase, eager_ns, replay_ns, wobble, behind=None):
        swing = [1 + wobble * (round % 5 - 2) for round in range(20)]
        eager = tuple(eager_ns * factor for factor in swing)
        replay = tuple(replay_ns * factor for factor in reversed(swing))
        return (
            Samples("eager", phase, eager, (eager_ns * 0.9,) * 20, behind=behind),
            Samples("replay", phase, replay, (4e3,) * 20, behind=behind),
        )

    bench = Bench(
        (
            *samples("forward", 96.5e3, 33.0e3, 0.001),
            *samples("backward", 40.0e3, 44.0e3, 0.002, "forward"),
            *samples("both", 1.0e6, 1.0e6, 0.05),
        ),
        Clock(sm_mhz=(1980, 1980, 1500)),
        timer_grain_ns=500.0,
    )
    graphs = [Graph(name, name, capture_ns=1_500_000) for name in ("forward", "backward")]
    report = bench_report(capture(graphs, bench=bench))
    compare("made-up-bench", bench_table.render(report), width)


@pytest.mark.parametrize("width", [80, 160])
def test_bench_as_recorded_on_a_gpu(width):
    report = bench_report(read(CAPTURES / "mlp-bench.cgt"))
    compare("bench-mlp", bench_table.render(report), width)


@pytest.mark.parametrize("width", [80, 160])
def test_doctor(width):
    capabilities = [
        Capability("python", "available", "3.12.1"),
        Capability("GPU", "degraded", "PyTorch sees no usable GPU: the simulated device stands in "
                   "for one", "a machine with an NVIDIA GPU"),
        Capability("node callbacks (CUPTI)", "absent", "tested only on a GPU"),
    ]  # fmt: skip
    compare("doctor", report_table.render_doctor(capabilities), width)


@pytest.mark.parametrize("view", ["summary", "pools"])
def test_every_table_of_a_simulated_capture_says_so_in_its_title(view):
    recorded = read(SAMPLES["simulated"])
    if view == "summary":
        parts = summary_table.render(summarize(recorded))
    else:
        parts = pools_table.render(pools_report(recorded))
    lines = text_of(parts, 160).splitlines()
    rules = [number for number, line in enumerate(lines) if line.startswith("───")]
    assert len(rules) == 3
    for number in rules:
        assert "simulated" in lines[number - 2]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_digit_is_lost_in_a_narrow_terminal(width):
    report = pools_report(read(SAMPLES["transformer"]))
    pools = pools_table.render(report, exact=True).parts[0]
    shown = "".join(text_of(pools, width).split("─")[-1].split())
    values = [column.cell(report.pools[0]) for column in pools.columns_at(width)]
    assert len(values) >= 6
    assert sum(map(str.isdigit, shown)) == sum(map(str.isdigit, "".join(map(str, values))))


def test_the_column_with_one_long_name_gives_way():
    rows = [("a_very_long_name_that_stands_alone", "first of the many names")]
    rows += [("short", "another of the many names")] * 5
    lines = text_of(of_rows(rows, "few", "many"), 50).splitlines()
    assert len(lines) == 3 + 6 + 1
    assert [line.split("  ")[0] for line in lines[3:5]] == [
        "a_very_long_name_that_",
        "stands_alone",
    ]


def test_a_terminal_too_narrow_for_the_columns_shows_every_cell_in_a_list():
    columns = [
        Column("line", lambda row: row[0]),
        Column("nodes", lambda row: row[1]),
        Column("time", lambda row: row[2], lambda us: f"{us} us"),
        Column("waited for", lambda row: row[3], lambda us: f"{us} us" if us else ""),
    ]
    rows = [("transformer.py:37", 80, 331, None), ("transformer.py:32", 20, 133, 288)]
    table = Table("T", columns, rows)
    lines = text_of(table, 30).splitlines()
    assert lines[2:] == [
        "transformer.py:37, nodes 80,",
        "  time 331 us",
        "transformer.py:32, nodes 20,",
        "  time 133 us, waited for 288",
        "  us",
    ]
    assert lines[:2] == ["T", "─" * 30]
    assert len(text_of(table, 60).splitlines()) == 5


def test_words_break_between_names_and_lose_nothing():
    words = Cell("gradient of layers.12.attention.weight")
    assert words.lines(14) == ["gradient of", "layers.12.", "attention.", "weight"]
    for text in ("a b", "漢字漢字 漢字", "x" * 30, "", " two  spaces ", "a.b"):
        for width in range(1, 12):
            lines = Cell(text).lines(width)
            assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_a_name_is_not_markup_and_moves_no_cursor():
    table = of_rows([("[red]x[/]\x1b[2J",)], "name", title="[bold]T[/]")
    assert "[red]x[/]\\x1b[2J" in text_of(table, 60)
    assert text_of(table, 60).startswith("[bold]T[/]")


def test_a_capture_without_a_pool_says_so():
    text = text_of(pools_table.render(pools_report(capture([]))), 80)
    assert text.splitlines() == [
        "Memory pools of model.py:build (NVIDIA H200)",
        "none: no graph of the capture holds memory",
    ]


@given(
    st.text(st.characters(exclude_categories=[]), max_size=40) | st.text("ab\n\x1b~", max_size=40)
)
def test_a_text_has_as_many_cells_as_rich_gives_it(text):
    assert cell_len(visible(text)) == rich.cells.cell_len(visible(text))


def test_a_column_is_not_narrowed_from_the_length_of_a_kernels_name(monkeypatch):
    tried = []
    real = Cell.lines
    monkeypatch.setattr(Cell, "lines", lambda cell, width: tried.append(width) or real(cell, width))
    table = of_rows([("void " + "gemm_" * 1000, "x" * 60, "y" * 60)], "kernel", "op", "module")
    assert len(text_of(table, 80).splitlines()) > 90
    assert max(tried) < 80
