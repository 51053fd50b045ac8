"""The screen of ``cgtool profile``, from captures of an H200, at 80 and 160 columns.

`UPDATE_GOLD=1 pytest tests/render/test_profile_table.py` writes the gold files again.
"""

from __future__ import annotations

from io import StringIO

import pytest
from msgspec import structs
from rich.console import Console

from cgtool.analysis.timing.profile import profile_report
from cgtool.render.profile_table import render
from tests.builders import hostile, small, timed
from tests.gold_files import check
from tests.recorded import ROOT, recorded


def text_of(capture, width, **options):
    by = options.get("by")
    buffer = StringIO()
    console = Console(file=buffer, width=width, color_system=None, highlight=False)
    console.print(render(profile_report(capture, **options), overview=by is None))
    text = "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
    assert max(map(len, text.splitlines())) <= width
    return text


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("sample", ["transformer", "train_step", "two_streams"])
def test_overview(sample, width, monkeypatch):
    monkeypatch.chdir(ROOT)
    capture = recorded(f"profile-{sample}")
    check(f"tables/profile-{sample}-{width}.txt", text_of(capture, width))


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("by", ["op", "kernel", "node"])
def test_one_table(by, width):
    capture = recorded("profile-transformer")
    check(f"tables/profile-transformer-by-{by}-{width}.txt", text_of(capture, width, by=by, top=8))


@pytest.mark.parametrize("capture", [timed(small()), timed(hostile())])
def test_node_times_alone_are_shown_with_what_they_can_tell(capture):
    text = text_of(capture, 100)
    assert "Cannot tell whether a CUDA graph helps" in text
    assert "gaps were measured under the profiler, which makes them longer" in text
    assert "\x1b" not in text


def test_nodes_without_a_time_are_counted():
    capture = timed(small())
    forward = capture.graphs[0]
    nodes = (structs.replace(forward.nodes[0], duration_ns=None, start_ns=None), *forward.nodes[1:])
    capture = structs.replace(capture, graphs=(structs.replace(forward, nodes=nodes),))
    assert "1 node could not be timed" in text_of(capture, 100)
