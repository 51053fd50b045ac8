"""What a ledger's findings say, and when they say nothing."""

from __future__ import annotations

import pytest
from msgspec import structs

from cgtool.analysis.ledger_findings import by_line, ledger_findings
from cgtool.analysis.ledger_report import ledger_report, sentence_of
from cgtool.model.capture import Capture, Graph, Node
from cgtool.model.finding import Finding
from cgtool.model.ledger import COMPILE, RESET, LedgerGraph, Skip
from tests.builders import program

ENGINE = LedgerGraph(0, 0, "Engine.capture", frames=(0, 2), capture_ns=2_000_000, replays=9)
TREE = LedgerGraph(0, 0, COMPILE, key="0/0 inference", frames=(1, 2), replays=9)


def found(capture: Capture) -> dict[str, Finding]:
    return {finding.code: finding for finding in ledger_findings(capture)}


def test_a_program_without_fault_has_no_findings() -> None:
    assert found(program([ENGINE, structs.replace(TREE, frames=(2,))])) == {}


def test_the_replay_that_ends_a_recording_is_no_use() -> None:
    capture = program([structs.replace(TREE, replays=1), TREE])
    finding = found(capture)["graph-never-replayed"]
    assert finding.reason.startswith("1 of 2 graphs captured here was never replayed after")
    # A graph of the user's that was replayed once was used once.
    assert found(program([structs.replace(ENGINE, replays=1)])) == {}


def test_a_graph_of_nothing() -> None:
    capture = program([ENGINE, ENGINE, TREE])
    graphs = tuple(structs.replace(graph, nodes=(), edges=()) for graph in capture.graphs)
    finding = found(structs.replace(capture, graphs=(capture.graphs[0], *graphs[1:])))[
        "empty-graph"
    ]
    assert finding.reason.startswith("1 of 2 graphs captured here is empty: ")
    assert finding.evidence == ("9 replays", "graph 1")
    # Compiled code may have nothing to launch.
    assert found(structs.replace(capture, graphs=(*capture.graphs[:2], graphs[2]))) == {}
    # A graph that only keeps a pool alive is never replayed.
    capture = program([ENGINE, structs.replace(ENGINE, replays=0)])
    graphs = (capture.graphs[0], structs.replace(capture.graphs[1], nodes=(), edges=()))
    assert set(found(structs.replace(capture, graphs=graphs))) == {"graph-never-replayed"}


@pytest.mark.parametrize(
    ("because", "code"),
    [
        ("static input data pointer changed.\ninput name: primals_1. ", "rerecorded-static-input"),
        ("cudagraph managed tensor data pointer changed.\n", "rerecorded-graph-input"),
        ("expected dead indices before graph are live", "rerecorded-live-output"),
    ],
)
def test_a_rerecord_has_the_reason_of_graph_trees(because: str, code: str) -> None:
    again = structs.replace(TREE, because=because, capture_ns=3_000_000)
    finding = found(program([TREE, again, again]))[code]
    assert "captured 2 graphs again" in finding.reason
    assert finding.evidence[0] == "2 captures: 6.00 ms"


def test_a_recompilation_has_graphs_of_its_own() -> None:
    later = structs.replace(TREE, key="0/1 inference")
    assert "2 times" in found(program([TREE, later]))["recaptured-after-recompile"].reason
    other = structs.replace(TREE, key="1/0 inference")
    assert "recaptured-after-recompile" not in found(program([TREE, other]))


def test_a_backward_belongs_to_the_line_of_its_forward() -> None:
    forward = structs.replace(TREE, key="0/0 forward")
    capture = program([forward, structs.replace(TREE, key="0/0 backward", frames=())])
    assert capture.ledger is not None
    (line,) = by_line(capture, capture.ledger)
    assert len(line.entries) == 2


def dropped(count: int) -> list[LedgerGraph]:
    """The same work, captured after the graph before it was freed."""
    return [
        structs.replace(ENGINE, replays=1, began_ns=10 * at, ended_ns=10 * at + 9)
        for at in range(count)
    ]


def test_the_same_work_captured_again_and_again() -> None:
    assert "capture-time-not-amortized" in found(program(dropped(5)))
    assert "capture-time-not-amortized" not in found(program(dropped(4)))
    # Equal layers, each with a graph of its own.
    kept = [structs.replace(each, ended_ns=None) for each in dropped(5)]
    assert "capture-time-not-amortized" not in found(program(kept))


def test_graphs_that_are_dropped_for_each_other_are_one_finding() -> None:
    capture = program([ENGINE] * 10)
    assert capture.ledger is not None
    entries = [
        structs.replace(each, replays=1, began_ns=10 * at, ended_ns=10 * at + 9)
        for at, each in enumerate(capture.ledger.graphs)
    ]
    graphs = tuple(
        Graph(f"{at}", "step", nodes=(Node(0, "op", 0, shape=f"[{at % 2}]"),)) for at in range(10)
    )
    ledger = structs.replace(capture.ledger, graphs=tuple(entries))
    (finding,) = ledger_findings(structs.replace(capture, graphs=graphs, ledger=ledger))
    assert finding.reason.startswith("10 captures of 2 different graphs")
    assert finding.graphs == tuple(range(2, 10))


def test_the_same_work_captured_again_after_a_reset() -> None:
    first = structs.replace(ENGINE, ended_ns=9, end=RESET)
    again = structs.replace(ENGINE, began_ns=10, because=RESET)
    finding = found(program([first, again]))["recaptured-after-reset"]
    assert finding.graphs == (1,)
    assert finding.evidence[-1] == "graph 1"
    # A new graph, or other work.
    assert "recaptured-after-reset" not in found(
        program([first, structs.replace(again, because=None)])
    )
    other = program([first, again])
    graphs = (other.graphs[0], structs.replace(other.graphs[1], nodes=other.graphs[1].nodes[:1]))
    assert "recaptured-after-reset" not in found(structs.replace(other, graphs=graphs))


def test_memory_that_a_graph_in_use_shares_is_not_wasted() -> None:
    largest = structs.replace(ENGINE, replays=0, pool=(0, 1), reserved_bytes=1 << 21)
    used = structs.replace(ENGINE, pool=(0, 1))
    for entries, is_reported in (([largest, used], False), ([largest], True)):
        capture = program(entries)
        assert capture.ledger is not None
        assert ("2.0 MiB wasted" in sentence_of(capture.ledger)) == is_reported
        evidence = found(capture)["graph-never-replayed"].evidence
        assert ("2.0 MiB" in evidence[0]) == is_reported


def test_a_graph_for_every_shape() -> None:
    def of_shapes(count: int) -> Capture:
        capture = program([ENGINE] * count)
        graphs = tuple(
            Graph(f"{at}", "step", nodes=(Node(0, "op", 0, shape=f"[{at}]"),))
            for at in range(count)
        )
        return structs.replace(capture, graphs=graphs)

    assert "many-graphs-for-many-shapes" in found(of_shapes(16))
    assert "many-graphs-for-many-shapes" not in found(of_shapes(15))


def test_one_topology_counts_while_the_other_graph_is_there() -> None:
    alike = structs.replace(ENGINE, same_as=0, began_ns=10, instantiate_ns=1000)
    code = "graphs-of-one-topology"
    assert code in found(program([ENGINE, alike]))
    assert code not in found(program([structs.replace(ENGINE, ended_ns=5), alike]))
    # The first may be gone, and another still there.
    gone = structs.replace(ENGINE, ended_ns=5)
    later = structs.replace(alike, began_ns=20)
    finding = found(program([gone, alike, later]))[code]
    assert (finding.reason[:6], finding.graphs) == ("1 of 3", (2,))
    # Nobody can update a graph of torch.compile.
    assert code not in found(program([TREE, structs.replace(alike, same_as=0)]))
    assert code not in found(program([TREE, structs.replace(TREE, same_as=0)]))


def test_rows_name_the_findings_about_their_graphs() -> None:
    report = ledger_report(program([structs.replace(ENGINE, replays=0), ENGINE]))
    assert [row.findings for row in report.graphs] == [("graph-never-replayed",), ()]
    assert [row.findings for row in report.lines] == [("graph-never-replayed",)]
    assert report.findings[0].graphs == (0,)


def test_a_failed_capture_without_a_finding_says_its_error() -> None:
    failed = structs.replace(ENGINE, replays=0, failure="ValueError: of the user's")
    report = ledger_report(program([ENGINE, failed, failed]))
    assert report.findings == ()
    assert [text.partition(": ")[2] for text in report.failures] == [
        "ValueError: of the user's (2 times)"
    ]


def test_skips_are_counted_by_reason() -> None:
    reason = "skipping cudagraphs due to cpu device (primals_2)"
    capture = program([], skips=[Skip(0, reason), Skip(1, reason, 2)])
    finding = found(capture)["cudagraphs-skipped"]
    assert (finding.times, finding.frames) == (3, ())
    assert finding.reason.endswith("without a CUDA graph: cpu device (primals_2)")
    assert finding.fix is not None
