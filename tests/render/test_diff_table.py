"""The screen of ``cgtool diff``, from captures of an H200, at 80 and 160 columns.

`UPDATE_GOLD=1 pytest tests/render/test_diff_table.py` writes the gold files again.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from cgtool.analysis.diff.compare import compare
from cgtool.analysis.graph.places import Places
from cgtool.model.capture import Edge
from cgtool.model.capture_file import read
from cgtool.model.validation import inconsistency
from cgtool.render.diff_table import render
from tests.builders import hostile, unusual
from tests.gold_files import check

CAPTURES = Path(__file__).resolve().parent.parent.parent / "samples" / "captures"


def text_of(report, width, **options):
    buffer = StringIO()
    console = Console(file=buffer, width=width, color_system=None, highlight=False)
    console.print(render(report, **options))
    text = "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
    assert max(map(len, text.splitlines())) <= width
    return text


def timed(capture):
    """Every node with a time made up by this test."""
    graphs = tuple(
        replace(
            graph,
            nodes=tuple(replace(node, duration_ns=1000 + 10 * node.id) for node in graph.nodes),
        )
        for graph in capture.graphs
    )
    return replace(capture, graphs=graphs)


def edited(capture):
    """No residual add behind the attention, gelu launched otherwise, one gemm by another kernel and
    slower, an edge that leads elsewhere, a larger pool, another PyTorch."""
    places = Places(capture)
    forward, backward = capture.graphs
    nodes = []
    for node in forward.nodes:
        place = places.of(node)
        if place.short_op == "add" and place.line is not None and place.line.line == 36:
            continue
        if place.short_op == "gelu":
            node = replace(node, kernel=replace(node.kernel, grid=(64, 2, 1)))
        if place.short_op == "addmm" and place.module == "layers.0.mlp.0":
            kernel = replace(node.kernel, function=0, grid=(8, 8, 4))
            node = replace(node, kernel=kernel, duration_ns=5 * node.duration_ns)
        nodes.append(replace(node, id=len(nodes)))
    chain = tuple(Edge(at, at + 1) for at in range(len(nodes) - 1))
    forward = replace(forward, nodes=tuple(nodes), edges=chain)
    edges = [edge for edge in backward.edges if edge.target != 100]
    backward = replace(backward, edges=(*edges, Edge(98, 100)))
    (pool,) = capture.memory.pools
    first, *others = pool.segments
    segments = (replace(first, bytes=first.bytes + (4 << 20)), *others)
    memory = replace(
        capture.memory,
        pools=(replace(pool, segments=segments),),
        allocations=tuple(
            replace(allocation, node=None) for allocation in capture.memory.allocations
        ),
    )
    environment = replace(capture.environment, torch="2.12.0+cu130")
    capture = replace(capture, graphs=(forward, backward), memory=memory, environment=environment)
    assert inconsistency(capture) is None
    return capture


@pytest.mark.parametrize("width", [80, 160])
def test_an_edited_transformer(width):
    capture = timed(read(CAPTURES / "transformer.cgt"))
    report = compare(capture, edited(capture), names=("before.cgt", "after.cgt"))
    check(f"tables/diff-transformer-{width}.txt", text_of(report, width))


@pytest.mark.parametrize("width", [80, 160])
def test_two_workloads_that_have_nothing_in_common(width):
    names = "mlp.cgt", "gan.cgt"
    report = compare(*(read(CAPTURES / name) for name in names), names=names)
    check(f"tables/diff-mlp-gan-{width}.txt", text_of(report, width, rows=8))


@pytest.mark.parametrize("width", [80, 160])
def test_the_same_twice(width):
    names = "mlp.cgt", "mlp-bench.cgt"
    report = compare(*(read(CAPTURES / name) for name in names), names=names)
    check(f"tables/diff-same-{width}.txt", text_of(report, width))


@pytest.mark.parametrize("width", [40, 80, 160])
def test_odd_names_and_nodes_fit_every_width(width):
    for pair in ((hostile(), unusual()), (unusual(), hostile())):
        text = text_of(compare(*pair), width, rows=0)
        assert "\x1b" not in text
        assert "[bold red]rich markup[/]" in text.replace("\n", "") or width < 160


def test_rows_0_shows_all_where_every_graph_is_another():
    report = compare(
        read(CAPTURES / "mlp.cgt"), read(CAPTURES / "train_step.cgt"), names=("a", "b")
    )
    whole = text_of(report, 80, rows=0)
    assert all(f"\n{graph} " in whole for graph in ("forward", "backward", "step"))
