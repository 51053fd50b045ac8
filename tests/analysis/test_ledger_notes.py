"""What a program noted for its replays, against arithmetic by hand."""

from __future__ import annotations

import pytest
from msgspec import structs

from cgtool.analysis.ledger_findings import ledger_findings
from cgtool.analysis.ledger_notes import Note, notes_of
from cgtool.model.finding import Finding
from cgtool.model.ledger import LedgerGraph, NotedReplays
from tests.builders import program

ENGINE = LedgerGraph(0, 0, "Engine.capture", frames=(0, 2), capture_ns=2_000_000, replays=40)
ROWS = ("rows", "padded_rows")


def noting(*replays: NotedReplays) -> LedgerGraph:
    return structs.replace(ENGINE, notes=replays)


def padding(*graphs: LedgerGraph) -> Finding | None:
    found = {finding.code: finding for finding in ledger_findings(program(graphs))}
    return found.get("graph-mostly-padding")


def test_a_name_has_its_counts_and_its_median() -> None:
    batches = [NotedReplays(("batch",), (size,), times) for size, times in ((9, 2), (1, 1), (4, 3))]
    assert notes_of([noting(*batches)]) == (Note("batch", 6, 1, 4, 9, (), None),)
    assert notes_of([noting()]) == ()
    texts = [NotedReplays(("batch",), (2.0,), 3, (("mode", mode),)) for mode in ("lora", "plain")]
    assert notes_of([noting(*texts)]) == (
        Note("batch", 6, 2, 2, 2, (), None),
        Note("mode lora", 3, None, None, None, (), None),
        Note("mode plain", 3, None, None, None, (), None),
    )
    # A damaged file has not as many values as names.
    assert notes_of([noting(NotedReplays(("batch", "rows"), (2.0,), 1))])


def test_padding_is_what_was_computed_and_not_needed() -> None:
    first = noting(NotedReplays(ROWS, (13, 16), 10), NotedReplays(ROWS, (3, 16), 10))
    second = noting(NotedReplays(ROWS, (32, 32), 5))
    # 160 + 160 + 160 rows computed, 130 + 30 + 160 needed.
    (note,) = notes_of([first, second])
    assert note == Note("rows", 25, 3, 13, 32, (16, 32), pytest.approx(1 - 320 / 480))
    # Without a size there is no padding, and a size alone is a note as any other.
    alone = notes_of([noting(NotedReplays(("padded_rows",), (16,), 3))])
    assert [(note.name, note.padding) for note in alone] == [("padded_rows", None)]


def test_more_than_half_padding_is_a_finding_with_a_better_size() -> None:
    graph = noting(NotedReplays(ROWS, (3, 64), 30), NotedReplays(ROWS, (60, 64), 10))
    finding = padding(graph)
    assert finding is not None
    # 40 * 64 computed, 690 needed; with a graph of 3, 30 * 3 + 10 * 64 are computed.
    assert finding.reason.startswith("73% of the rows computed by 1 graph captured here")
    padded = "rows 64: 40 replays needed 3 to 60, 73% padding"
    assert finding.evidence == (padded, "graph 0")
    assert finding.fix == "also capture a graph for `rows=3`, which leaves 5% padding"


@pytest.mark.parametrize(
    "graph",
    [
        noting(NotedReplays(ROWS, (3, 64), 7)),  # too few
        noting(NotedReplays(ROWS, (33, 64), 40)),
        noting(NotedReplays(("rows",), (3,), 40)),
        noting(NotedReplays(ROWS, (0, 0), 40)),
    ],
)
def test_little_padding_is_no_finding(graph: LedgerGraph) -> None:
    assert padding(graph) is None
