"""The JSON of a capture, for scripts."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given, settings

from cgtool.analysis.graph.select import parse, select
from cgtool.analysis.graph.view import only, whole
from cgtool.model.capture import Capture
from cgtool.model.capture_file import read
from cgtool.render.json import encode_graphs
from tests.builders import hostile, plain, small
from tests.gold_files import GOLD, check
from tests.strategies import captures


def test_the_small_capture_reads_as_it_did() -> None:
    capture = small()
    text = encode_graphs(
        capture, [whole(index, graph) for index, graph in enumerate(capture.graphs)]
    )
    check("small.json", msgspec.json.format(text.decode(), indent=1))


def test_a_node_has_its_names_resolved() -> None:
    capture = small()
    report = json.loads(encode_graphs(capture, [whole(1, capture.graphs[1])]))
    assert (report["schema"], report["schema_version"]) == ("cgtool-graphs", 1)
    (graph,) = report["graphs"]
    node = graph["nodes"][1]
    assert node["kernel"] == "cutlass_80_simt_sgemm_64x64_8x5_nn_align1"
    assert node["kernel_mangled"].startswith("_ZN7cutlass")
    assert node["kernel_demangled"].startswith("void cutlass::Kernel2<")
    assert (node["module"], node["op"]) == ("layers.1.linear", "aten::mm")
    assert (node["file"], node["line"]) == ("/home/me/train.py", 7)
    assert (node["forward_file"], node["forward_line"]) == ("/home/me/model.py", 12)
    assert (node["grid"], node["block"], node["stream"]) == (
        [4, 2, 1],
        [32, 4, 1],
        "capture stream",
    )
    assert graph["edges"][-1] == [3, 4, "programmatic"]


def test_a_selection_says_what_it_left_out() -> None:
    capture = small()
    report = json.loads(
        encode_graphs(capture, [select(capture, 0, parse(["type=memcpy|none", "node=6"]))])
    )
    assert report["graphs"][0]["node_count"] == 7
    assert [node["id"] for node in report["graphs"][0]["nodes"]] == [6]
    report = json.loads(encode_graphs(capture, [select(capture, 0, parse(["node=0|6"]))]))
    assert report["graphs"][0]["edges"] == [[0, 6, "hidden"]]


def test_hidden_paths_meet_at_a_node_with_a_negative_id() -> None:
    capture = plain(5, [(0, 2), (1, 2), (2, 3), (2, 4)])
    report = json.loads(
        encode_graphs(capture, [only(0, capture.graphs[0], [True, True, False, True, True])])
    )
    (graph,) = report["graphs"]
    assert [node["id"] for node in graph["nodes"]] == [0, 1, -3, 3, 4]
    assert graph["nodes"][2] == {"id": -3, "type": "hidden"}
    assert sorted(graph["edges"]) == [
        [-3, 3, "hidden"],
        [-3, 4, "hidden"],
        [0, -3, "hidden"],
        [1, -3, "hidden"],
    ]


def test_a_simulated_capture_says_so() -> None:
    capture = read(GOLD / "captures" / "mlp-separate-simulated.cgt")
    report = json.loads(encode_graphs(capture, [whole(0, capture.graphs[0])]))
    assert report["environment"]["device"] == "simulated"
    assert report["environment"]["simulated"] is True
    assert "simulated" in {caveat["code"] for caveat in report["caveats"]}


def test_hostile_names_are_json() -> None:
    capture = hostile()
    # A lone surrogate never gets into a file; in memory it has no JSON form.
    names = [stream.name.encode(errors="backslashreplace").decode() for stream in capture.streams]
    clean = msgspec.convert(
        json.loads(json.dumps(msgspec.to_builtins(capture)).replace("\\ud800", "\\\\ud800")),
        Capture,
    )
    data = encode_graphs(clean, [whole(0, clean.graphs[0])])
    assert not {"\x7f", "\x9b", "\x85", "\u2028", "\u202e"} & set(data.decode())
    report = json.loads(data)
    assert [node.get("stream", "") for node in report["graphs"][0]["nodes"]] == names


@settings(max_examples=40)
@given(captures())
def test_it_is_what_it_says_it_is(capture: Capture) -> None:
    views = [whole(index, graph) for index, graph in enumerate(capture.graphs)]
    report = json.loads(encode_graphs(capture, views))
    for graph, shown in zip(capture.graphs, report["graphs"], strict=True):
        assert [node["id"] for node in shown["nodes"]] == [node.id for node in graph.nodes]
        assert [edge[:2] for edge in shown["edges"]] == [[e.source, e.target] for e in graph.edges]
