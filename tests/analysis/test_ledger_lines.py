"""The line of a graph: that of the user's code which tells it apart from others."""

from __future__ import annotations

from msgspec import structs

from cgtool.analysis.ledger_findings import ledger_findings
from cgtool.analysis.ledger_report import ledger_report
from cgtool.model.capture import Capture, Frame
from cgtool.model.ledger import COMPILE, LedgerGraph, ReplayPlace
from tests.builders import program

FRAMES = (
    Frame("/home/me/helpers.py", 5, "graphed"),
    Frame("/home/me/engine.py", 20, "Engine.load"),
    Frame("/home/me/engine.py", 30, "Engine.load"),
    Frame("/home/me/main.py", 7, "main"),
    Frame("/home/me/main.py", 8, "main"),
    Frame("/usr/lib/python3/site-packages/engine/capture.py", 1, "capture"),
)


def rows(*calls: tuple[int, ...], owner: str = "graphed") -> list[tuple[str, int]]:
    return [(row.line, row.graphs) for row in ledger_report(captured(*calls, owner=owner)).lines]


def captured(*calls: tuple[int, ...], owner: str = "graphed") -> Capture:
    entries = [
        LedgerGraph(0, 0, owner, frames=frames, replays=9 - at) for at, frames in enumerate(calls)
    ]
    return structs.replace(program(entries), frames=FRAMES)


def test_a_helper_has_a_row_for_each_line_that_calls_it() -> None:
    wanted = [("engine.py:20", 2), ("engine.py:30", 1)]
    assert rows((0, 1, 3), (0, 1, 4), (0, 2, 3)) == wanted
    # Frames of a library that calls the helper are not the user's.
    assert rows((0, 5, 1, 3), (0, 1, 3), (0, 5, 2)) == wanted
    assert rows((0,), (0, 2)) == [("helpers.py:5", 1), ("engine.py:30", 1)]


def test_an_engine_has_its_own_line() -> None:
    """It may be called from everywhere, and captures when a size first occurs."""
    assert rows((0, 1, 3), (0, 1, 4)) == [("helpers.py:5", 2)]
    assert rows((0, 1), (0, 2), owner=COMPILE) == [("helpers.py:5", 2)]


def test_a_finding_has_the_calls_of_its_graphs() -> None:
    capture = captured((0, 1, 3), (0, 2, 3))
    assert capture.ledger is not None
    used, unused = capture.ledger.graphs
    graphs = (used, structs.replace(unused, replays=0))
    ledger = structs.replace(capture.ledger, graphs=graphs)
    found = ledger_findings(structs.replace(capture, ledger=ledger))
    frames = next(each.frames for each in found if each.code == "graph-never-replayed")
    assert frames == (FRAMES[0], FRAMES[2], FRAMES[3])


def test_a_helper_that_replays_is_named_by_the_lines_that_call_it() -> None:
    """The lines of a helper that captures are found in the same way."""

    def replayed_at(*calls: tuple[int, ...]) -> list[str | None]:
        capture = captured(*((3,) for _ in calls))
        assert capture.ledger is not None
        entries = tuple(
            structs.replace(entry, replayed_at=(ReplayPlace(frames, 5),))
            for entry, frames in zip(capture.ledger.graphs, calls, strict=True)
        )
        ledger = structs.replace(capture.ledger, graphs=entries)
        report = ledger_report(structs.replace(capture, ledger=ledger))
        return [row.replayed_at for row in report.graphs]

    assert replayed_at((0, 1, 3), (0, 5, 2, 3)) == ["engine.py:20", "engine.py:30"]
    assert replayed_at((0, 1, 3), (0, 1, 4)) == ["helpers.py:5", "helpers.py:5"]
    assert replayed_at((0,), (0, 2)) == ["helpers.py:5", "engine.py:30"]
    assert replayed_at((5,), (5, 1)) == ["capture.py:1", "engine.py:20"]


def test_graphs_without_a_name_have_a_size_that_tells_them_apart() -> None:
    def sizes(*shapes: tuple[str, ...], key: str = "") -> list[str | None]:
        capture = captured(*((0,) for _ in shapes))
        assert capture.ledger is not None
        node = structs.replace(capture.graphs[0].nodes[0], kernel=None, copy=None, fill=None)
        graphs = tuple(
            structs.replace(
                graph, nodes=tuple(structs.replace(node, shape=shape) for shape in shapes[at])
            )
            for at, graph in enumerate(capture.graphs)
        )
        entries = tuple(structs.replace(each, key=key) for each in capture.ledger.graphs)
        ledger = structs.replace(capture.ledger, graphs=entries)
        report = ledger_report(structs.replace(capture, graphs=graphs, ledger=ledger))
        return [row.size for row in report.graphs]

    assert sizes(("[4]", "[1,4]"), ("[4]", "[2,4]")) == ["[1,4]", "[2,4]"]
    assert sizes(("[1]", "[1]"), ("[1]", "[2]"), ("[2]", "[3]", "[9]")) == ["[1]", "[2]", "[3]"]
    assert sizes(("[4]",), ("[4]",)) == [None, None]
    assert sizes(("[1]",), ("[2]",), key="batch 1") == [None, None]
    assert sizes(("[1]",), ()) == [None, None]


def test_the_rows_of_json_have_what_the_table_has_no_room_for() -> None:
    capture = captured((0, 1, 3), (0, 1, 4))
    assert capture.ledger is not None
    places = (ReplayPlace((3,), 5), ReplayPlace((4,), 2))
    times = {"first_replay_ns": 30, "last_replay_ns": 90, "replayed_at": places}
    entries = tuple(structs.replace(each, **times) for each in capture.ledger.graphs)
    ledger = structs.replace(capture.ledger, graphs=entries)
    (row,) = ledger_report(structs.replace(capture, ledger=ledger)).lines
    types = [node.type for node in capture.graphs[0].nodes]
    assert row.kernels == (types.count("kernel"),)
    assert row.copies == (types.count("memcpy"),)
    assert (row.first_replay_ns, row.last_replay_ns) == (30, 90)
    assert row.replay_lines == {"main.py:7": 10, "main.py:8": 4}
