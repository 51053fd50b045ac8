"""What a ledger's findings say, and when they say nothing."""

from __future__ import annotations

import pytest
from msgspec import structs

from cgtool.analysis.ledger_findings import by_line, ledger_findings
from cgtool.model.capture import Capture, Graph, Node
from cgtool.model.finding import Finding
from cgtool.model.ledger import COMPILE, LedgerGraph, Skip
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
    assert "recorded 2 graphs again" in finding.reason
    assert finding.evidence[0] == "2 recordings: 6.00 ms"


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
    assert "capture-time-not-amortised" in found(program(dropped(5)))
    assert "capture-time-not-amortised" not in found(program(dropped(4)))
    # Equal layers, each with a graph of its own.
    kept = [structs.replace(each, ended_ns=None) for each in dropped(5)]
    assert "capture-time-not-amortised" not in found(program(kept))


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
    # Nobody can update a graph of torch.compile.
    assert code not in found(program([TREE, structs.replace(TREE, same_as=0)]))


def test_skips_are_counted_by_reason() -> None:
    reason = "skipping cudagraphs due to cpu device (primals_2)"
    capture = program([], skips=[Skip(0, reason), Skip(1, reason, 2)])
    finding = found(capture)["cudagraphs-skipped"]
    assert (finding.times, finding.frames) == (3, ())
    assert finding.reason.endswith("without a CUDA graph: cpu device (primals_2)")
    assert finding.fix is not None
