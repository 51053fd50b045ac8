"""Graphs of two runs of a program are matched by who captured them and what they do."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from cgtool.analysis.diff.compare import compare
from cgtool.model.capture import Capture, Graph, Node
from cgtool.model.ledger import COMPILE, LedgerGraph
from tests.builders import program


def run(*captures: tuple[str, Sequence[str]], replays: int = 1) -> Capture:
    """A run that captured these graphs: the owner, and the shapes of the nodes."""
    base = program(
        [
            LedgerGraph(0, 0, owner, key="0/0" if owner == COMPILE else "", replays=replays)
            for owner, _ in captures
        ]
    )
    graphs = tuple(
        Graph(
            f"{owner} {' '.join(shapes)}",
            "step",
            nodes=tuple(Node(at, "op", shape=shape) for at, shape in enumerate(shapes)),
        )
        for owner, shapes in captures
    )
    return structs.replace(base, graphs=graphs)


def changes(a: Capture, b: Capture) -> dict[str, str]:
    return {row.name: row.change for row in compare(a, b).graphs}


def test_the_order_of_captures_does_not_count() -> None:
    a = run(("Engine", ["[8]"]), ("Engine", ["[4]"]), ("Other", ["[4]"]))
    b = run(("Other", ["[4]"]), ("Engine", ["[4]"]), ("Engine", ["[8]"]))
    assert not compare(a, b).different


def test_a_shape_that_is_captured_no_more_is_gone() -> None:
    a = run(("Engine", ["[8]"]), ("Engine", ["[4]"]))
    b = run(("Engine", ["[4]"]), ("Engine", ["[2]"]), ("Engine", ["[1]"]))
    assert changes(a, b) == {
        "Engine [4]": "same",
        "Engine [8]": "removed",
        "Engine [2]": "added",
        "Engine [1]": "added",
    }


def test_the_only_graph_of_an_owner_has_changed() -> None:
    a = run((COMPILE, ["[8]", "[8]"]), ("Engine", ["[4]"]))
    b = run(("Engine", ["[4]"]), (COMPILE, ["[8]", "[8]", "[8]"]))
    assert changes(a, b) == {"Engine [4]": "same", f"{COMPILE} [8] [8] [8]": "changed"}


def test_counts_of_the_ledger_are_compared_and_not_judged() -> None:
    report = compare(run(("Engine", ["[8]"])), run(("Engine", ["[8]"]), replays=40))
    assert not report.different
    assert {row.kind: (row.a, row.b) for row in report.program}["replays"] == (1, 40)
    # Of its pools a run keeps nothing, which is not the same as no bytes.
    assert report.memory == ()


def test_a_function_with_another_name_captures_the_same_graphs() -> None:
    a = run(("Engine", ["[8]"]), ("Engine", ["[4]"]))
    b = run(("Runner", ["[4]"]), ("Runner", ["[2]"]))
    assert changes(a, b) == {"Runner [4]": "same", "Engine [8]": "removed", "Runner [2]": "added"}
