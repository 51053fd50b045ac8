"""How the kernels of a trace are matched, at 80 and 160 columns, against gold files."""

from __future__ import annotations

import pytest
from msgspec import structs

from cgtool.analysis.trace_match import match_launches
from cgtool.analysis.trace_report import annotate_report
from cgtool.model.capture_file import read
from cgtool.model.gpu_trace import read_chrome
from cgtool.render.annotate_table import render
from tests.gold_files import GOLD
from tests.render.test_tables import compare

TRACES = GOLD / "traces"


def report(graphs):
    """Of a trace of the program, with a capture of these of its graphs alone."""
    program = read(TRACES / "engine.cgt")
    capture = structs.replace(
        program, graphs=tuple(program.graphs[graph] for graph in graphs), ledger=None
    )
    found = read_chrome(TRACES / "engine.json.gz")
    launches = match_launches(capture, found.records)
    names = {"trace": "engine.json.gz", "name": "engine.cgt", "outside": found.outside}
    return annotate_report(capture, launches, **names)


@pytest.mark.parametrize("width", [80, 160])
def test_a_trace_that_fits(width):
    compare("annotate", render(report(range(8)), explain=True), width)


@pytest.mark.parametrize("width", [80, 160])
def test_launches_of_other_graphs(width):
    compare("annotate-unmatched", render(report([1, 4, 5])), width)
