"""DOT that is read, by people and by Graphviz: nothing in a name can break or change it."""

from __future__ import annotations

import html
import re
import xml.dom.minidom
from pathlib import Path
from xml.dom.minidom import Element

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgtool.analysis.graph.fold import fit
from cgtool.analysis.graph.select import parse, select
from cgtool.analysis.graph.view import View, whole
from cgtool.model.capture import Capture, Frame, Function, Graph, KernelLaunch, Node, Origin
from cgtool.model.capture_file import read
from cgtool.render import dot
from cgtool.render.dot import lay_out, render
from cgtool.render.text import cut, visible
from tests.builders import (
    HOSTILE_NAMES,
    capture,
    chain,
    hostile,
    nested,
    plain,
    small,
    unusual,
)
from tests.gold_files import GOLD, check
from tests.strategies import captures


def views(capture: Capture) -> list[View]:
    return [whole(index, graph) for index, graph in enumerate(capture.graphs)]


def drawn(text: str) -> list[Element]:
    """Lay out as SVG, which must be sound XML; the groups of nodes, edges and clusters."""
    document = xml.dom.minidom.parseString(lay_out(text, "svg"))
    return [group for group in document.getElementsByTagName("g") if group.getAttribute("class")]


def texts(group: Element) -> list[str]:
    return [
        "".join(child.data for child in text.childNodes)
        for text in group.getElementsByTagName("text")
    ]


def test_the_small_capture_looks_as_it_did() -> None:
    check("small.dot", render(small(), views(small())))


CAPTURES = Path(__file__).parent.parent.parent / "samples" / "captures"


@pytest.mark.parametrize("name", ["train_step", "two_streams"])
def test_captures_of_an_h200_look_as_they_did(name: str) -> None:
    recorded = read(CAPTURES / f"{name}.cgt")
    check(f"{name}.dot", render(recorded, views(recorded)))


def test_a_folded_capture_looks_as_it_did() -> None:
    recorded = read(CAPTURES / "transformer.cgt")
    folded, note = fit(recorded, views(recorded))
    check("folded.dot", render(recorded, folded, note=note))


def test_rows_say_what_is_between_them() -> None:
    recorded = plain(40, [(at, at + 1) for at in range(39)])
    (graph,) = recorded.graphs
    edges = (msgspec.structs.replace(graph.edges[0], type=1), *graph.edges[1:])
    recorded = msgspec.structs.replace(
        recorded, graphs=(msgspec.structs.replace(graph, edges=edges),)
    )
    selected = select(recorded, 0, parse(["node=0-10|20-30"]))
    (folded,), _ = fit(recorded, [selected])
    text = render(recorded, [folded])
    assert text.count("‖ ") == 2
    assert text.count("… ") == 2


def test_rows_of_a_long_run_are_in_columns_beside_each_other() -> None:
    recorded = read(CAPTURES / "train_step.cgt")
    folded, _ = fit(recorded, views(recorded))
    groups = drawn(render(recorded, folded))
    boxes = [group for group in groups if group.getAttribute("class") == "node"]
    assert len(boxes) == 2
    assert sum(row == "train_step.py:27" for box in boxes for row in map(str.strip, texts(box)))
    assert [group.getAttribute("class") for group in groups].count("edge") == 1


def test_a_simulated_capture_looks_as_it_did() -> None:
    recorded = read(GOLD / "captures" / "mlp-separate-simulated.cgt")
    check("simulated.dot", render(recorded, views(recorded)))


def test_bodies_are_drawn_and_led_to() -> None:
    check("nested.dot", render(nested(), views(nested())))


def test_every_node_and_edge_is_drawn_once_inside_its_modules() -> None:
    groups = drawn(render(small(), views(small())))
    kinds = [group.getAttribute("class") for group in groups]
    assert kinds.count("node") == 12
    assert kinds.count("edge") == 11
    titles = [texts(group)[0] for group in groups if group.getAttribute("class") == "cluster"]
    blocks = ["layers.0 · Block", "layers.1 · Block"]
    assert titles == ["forward", "layers", *blocks, "backward", "layers"]


def test_a_node_says_kernel_op_line_and_launch() -> None:
    groups = drawn(render(small(), views(small())))
    nodes = [texts(group) for group in groups if group.getAttribute("class") == "node"]
    assert [
        "sm80_xmma_gemm_f32_tn_n_32x32x8_ffma",
        "layers.0.linear · Linear",
        "addmm · model.py:12",
        "grid 16, block 128",
    ] in nodes
    assert ["memcpy dtod", "sum · train.py:7", "4.0 KiB"] in nodes
    assert any("on side stream" in rows for rows in nodes)


def test_a_backward_node_is_at_its_forward_line() -> None:
    text = render(small(), views(small()))
    assert "forward /home/me/model.py:12 in Block.forward" in text
    assert "AddmmBackward0" in text


def test_a_simulated_capture_says_so() -> None:
    recorded = msgspec.structs.replace(small(), environment=capture([], simulated=True).environment)
    picture = lay_out(render(recorded, views(recorded)), "svg").decode()
    assert "simulated device (ops on CPU tensors, no kernels)" in html.unescape(picture)


def test_colors() -> None:
    recorded = small()
    text = render(recorded, views(recorded), color="type")
    assert dot.TYPES["memcpy"][0] in text
    assert dot.TYPES["memset"][0] in text
    by_stream = render(recorded, views(recorded), color="stream")
    assert "side stream</TD>" in by_stream
    timed = msgspec.structs.replace(
        recorded,
        graphs=tuple(
            msgspec.structs.replace(
                graph,
                nodes=tuple(
                    msgspec.structs.replace(node, duration_ns=1000 * (node.id + 1))
                    for node in graph.nodes
                ),
            )
            for graph in recorded.graphs
        ),
    )
    hot = render(timed, views(timed), color="time")
    longest = [line for line in hot.splitlines() if "7.00 us" in line]
    assert len(longest) == 1
    assert dot.HEAT[-1][0] in longest[0]


def test_more_modules_than_colors_share_one_that_says_so() -> None:
    origins = tuple(Origin("aten::add", f"m{number}") for number in range(20))
    nodes = tuple(Node(number, "kernel", number) for number in range(20))
    recorded = capture([Graph("step", "step", nodes=nodes, edges=chain(20))], origins=origins)
    text = render(recorded, views(recorded), color="module")
    assert "others</TD>" in text
    assert text.count(f'fillcolor="{dot.OTHER[0]}"') == 20 - len(dot.SOFT)


def test_unusual_nodes_say_what_they_are_and_run() -> None:
    recorded = unusual()
    groups = drawn(render(recorded, views(recorded)))
    nodes = [texts(group) for group in groups if group.getAttribute("class") == "node"]
    for rows in (
        ["alloc"],
        ["event_record", "model.py:12"],
        ["event_wait", "model.py:12", "on side stream"],
        ["child", "model.py:12", "runs forward/node 3"],
        ["host", "model.py:12", "host function at 0x7f0012345678", "on side stream"],
        ["memcpy htod", "copy_ · model.py:12", "1.0 MiB", "on side stream"],
        ["memset", "512 B, set to 0"],
        ["type_99"],
        ["free"],
    ):
        assert rows in nodes, rows
    # A long reason is broken into lines, and nothing of it is lost.
    (conditional,) = [rows for rows in nodes if rows[0] == "conditional"]
    detail = recorded.graphs[0].nodes[7].detail
    assert " ".join(conditional[-2:]) == detail
    check("unusual.dot", render(recorded, views(recorded)))


def test_the_legend_names_a_color_once() -> None:
    head = render(unusual(), views(unusual())).splitlines()[1]
    assert "alloc, free</TD>" in head
    assert "other types</TD>" in head
    assert head.count("</TD><TD BGCOLOR") + 1 == 8
    assert "dashed green: to the graph that the node runs" in head


def test_a_long_op_and_its_line_are_below_each_other() -> None:
    op = "_scaled_dot_product_efficient_attention"
    frames = (Frame("/home/me/decoder_of_mine.py", 32, "f"),)
    recorded = capture(
        [Graph("step", "step", nodes=(Node(0, "kernel", 0),))],
        origins=(Origin(f"aten::{op}", None, None, (0,)),),
        frames=frames,
    )
    (rows,) = [
        texts(group)
        for group in drawn(render(recorded, views(recorded)))
        if group.getAttribute("class") == "node"
    ]
    assert rows == ["kernel", op, "decoder_of_mine.py:32"]


def test_graphs_of_several_callables_name_theirs() -> None:
    recorded = read(CAPTURES / "gan.cgt")
    titles = [
        " ".join("".join(texts(group)).split())
        for group in drawn(render(recorded, views(recorded)))
        if group.getAttribute("class") == "cluster"
    ]
    assert "forward 0 generator, 7 nodes, 6 edges" in titles
    assert "backward 1 discriminator, 7 nodes, 6 edges" in titles


def test_an_empty_graph_and_an_empty_selection_say_so() -> None:
    recorded = capture([Graph("forward", "forward")])
    assert "empty graph" in render(recorded, views(recorded))
    assert drawn(render(recorded, views(recorded)))
    assert "nothing selected" in render(small(), [select(small(), 0, parse(["op=none"]))])


def test_no_capture_graph_at_all_is_still_a_graph() -> None:
    drawn(render(capture([]), []))


@pytest.mark.parametrize("depth", [0, 1, 32])
def test_hostile_names_are_shown_as_text(depth: int) -> None:
    recorded = hostile()
    text = render(recorded, views(recorded), depth=depth)
    assert text.isascii() or all(line.isprintable() for line in text.splitlines())
    folded, _ = fit(recorded, views(recorded), 32)
    drawn(render(recorded, folded))
    groups = drawn(text)
    assert sum(group.getAttribute("class") == "node" for group in groups) == 2 * len(HOSTILE_NAMES)
    shown = {row for group in groups for row in texts(group)}
    for name in ("newline\\nand\\r\\nreturn", "{record|shape}", "\\N \\G \\l \\n"):
        assert name in shown
    assert "<svg onload=alert(1)>" in shown
    assert "\\x00\\x01\\x1b[31mred\\x7f" in shown


@settings(max_examples=60)
@given(st.text(st.characters(exclude_categories=[]), min_size=1, max_size=40))
def test_any_name_comes_back_from_graphviz_as_it_was(name: str) -> None:
    """As kernel, op, file-less module, range and detail: in labels, clusters and tooltips."""
    nodes = tuple(
        Node(number, "kernel", 0, kernel=KernelLaunch(0, (1, 1, 1), (1, 1, 1)))
        for number in range(2)
    )
    recorded = capture(
        [Graph(name, "forward", nodes=nodes)],
        origins=(Origin(None, name.replace(".", ""), None, (), None, None, (name,)),),
        functions=(Function("kernel"),),
    )
    groups = drawn(render(recorded, views(recorded)))
    clusters = [texts(group) for group in groups if group.getAttribute("class") == "cluster"]
    expected = visible(name)

    def same(shown: str, meant: str) -> bool:
        # XML readers and Graphviz fold runs of spaces.
        return " ".join(shown.split()) == " ".join(meant.split())

    assert any(same("".join(rows), f"{expected}   2 nodes, 0 edges") for rows in clusters)
    ranges = [row for group in groups for row in texts(group) if row.startswith("[")]
    assert any(same(row, cut(f"[{expected}]", 52)) or len(expected) != len(name) for row in ranges)
    tooltips = [
        link.getAttribute("xlink:title")
        for group in groups
        for link in group.getElementsByTagName("a")
    ]
    assert any(same(tip.split("\n")[-1], f"annotation {expected}") for tip in tooltips)


@settings(max_examples=25)
@given(captures(), st.sampled_from(["type", "module", "stream"]), st.integers(0, 4))
def test_every_capture_is_laid_out_with_all_its_nodes(
    capture: Capture, color: str, depth: int
) -> None:
    text = render(capture, views(capture), color=color, depth=depth)
    groups = drawn(text)
    nodes = [group for group in groups if group.getAttribute("class") == "node"]
    empty = sum(not graph.nodes for graph in capture.graphs)
    assert len(nodes) == sum(len(graph.nodes) for graph in capture.graphs) + empty
    edges = [group for group in groups if group.getAttribute("class") == "edge"]
    assert len(edges) == sum(len(graph.edges) for graph in capture.graphs)
    folded, note = fit(capture, views(capture), depth)
    drawn(render(capture, folded, color=color, note=note))


def test_labels_are_escaped_once() -> None:
    recorded = capture(
        [Graph("a&amp;b", "step", nodes=(Node(0, "kernel"),))],
    )
    (cluster,) = [
        texts(group)
        for group in drawn(render(recorded, views(recorded)))
        if group.getAttribute("class") == "cluster"
    ]
    assert cluster[0] == "a&amp;b"
    assert html.unescape(re.sub("<[^>]*>", "", "a&amp;amp;b")) == cluster[0]
