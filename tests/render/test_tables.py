"""Tables made from captures of a real GPU, at 80 and 160 columns, against gold files.

`UPDATE_GOLD=1 pytest tests/render/test_tables.py` writes them anew: look at the difference.
"""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cgtool.analysis.pools import explain
from cgtool.analysis.summary import summarize
from cgtool.model.file import read
from cgtool.render import pools_table, summary_table

ROOT = Path(__file__).resolve().parent.parent.parent
GOLD = ROOT / "tests" / "gold" / "tables"
SAMPLES = ("transformer", "gan", "two_streams")


def text_of(renderable, width):
    buffer = StringIO()
    Console(file=buffer, width=width, color_system=None, highlight=False).print(renderable)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("view", ["summary", "pools"])
def test_table(view, sample, width):
    capture = read(ROOT / "samples" / "captures" / f"{sample}.cgt")
    if view == "summary":
        text = text_of(summary_table.render(summarize(capture)), width)
    else:
        text = text_of(pools_table.render(explain(capture)), width)
    assert max(map(len, text.splitlines())) <= width
    gold = GOLD / f"{sample}-{view}-{width}.txt"
    if os.environ.get("UPDATE_GOLD"):
        gold.parent.mkdir(parents=True, exist_ok=True)
        gold.write_text(text)
    assert text == gold.read_text()


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_digit_is_lost_in_a_narrow_terminal(width):
    report = explain(read(ROOT / "samples" / "captures" / "transformer.cgt"))
    table = pools_table.render(report, exact=True).renderables[0]
    shown = "".join(text_of(table, width).split("─")[-1].split())
    digits = sum(map(str.isdigit, shown))
    row = report.pools[0]
    sizes = (row.segments, row.reserved, row.live, row.peak, row.untouched, row.floor)
    assert digits == sum(len(str(size)) for size in sizes)
