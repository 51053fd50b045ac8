"""Which graph of a capture is meant: by its name, or by what the ledger of a run knows of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.graph.select import in_lines
from cgtool.analysis.units import count_text
from cgtool.model.capture import Capture
from cgtool.model.ledger import UNSEEN, LedgerGraph

Fact = str | float
_LISTED = 20


class Candidate(NamedTuple):
    """A graph, or a capture of a run without nodes."""

    graph: int | None
    """Its index."""
    entry: LedgerGraph | None
    facts: Mapping[str, list[Fact]]
    """What it can be chosen by, without its line."""


def candidates(capture: Capture) -> list[Candidate]:
    """All graphs, and the captures without nodes."""
    entries = () if capture.ledger is None else capture.ledger.graphs
    of_graph = {entry.graph: entry for entry in entries}
    known = [(index, of_graph.get(index)) for index in range(len(capture.graphs))]
    return [
        Candidate(index, entry, _facts(capture, index, entry))
        for index, entry in (*known, *((None, each) for each in entries if each.graph is None))
    ]


def _facts(capture: Capture, index: int | None, entry: LedgerGraph | None) -> dict[str, list[Fact]]:
    facts: dict[str, list[Fact]] = defaultdict(list)
    if index is not None:
        facts["name"] = [capture.graphs[index].name]
    if entry is not None:
        facts |= {"owner": [entry.owner], "number": [entry.number]}
        facts |= {"key": [entry.key]} if entry.key else {}
        for noted in entry.notes:
            for name, value in zip(noted.names, noted.values, strict=True):
                facts[name] += [] if value in facts[name] else [value]
    return facts


def chosen(
    capture: Capture, line: str | None, facts: Mapping[str, Fact]
) -> tuple[list[Candidate], list[Candidate]]:
    """The graphs with these facts that the line captured, or called what did; and all candidates.
    Raises CgtoolError for a line that is not FILE:LINE."""
    every = candidates(capture)
    is_there = None if line is None else in_lines(line)

    def is_meant(each: Candidate) -> bool:
        frames = () if each.entry is None else each.entry.frames
        # What was noted before a capture is its key.
        noted = each.entry.key.split(", ") if each.entry else ()
        return (is_there is None or any(is_there(capture.frames[at]) for at in frames)) and all(
            value in each.facts.get(name, ()) or f"{name} {value}" in noted
            for name, value in facts.items()
        )

    return [each for each in every if each.graph is not None and is_meant(each)], every


def listed(capture: Capture, which: list[Candidate]) -> str:
    """A line for each of them."""
    lines = [_text(capture, each) for each in which]
    if len(lines) > _LISTED:
        lines[_LISTED:] = [f"and {len(lines) - _LISTED} more"]
    return "".join(f"\n  {line}" for line in lines)


def _text(capture: Capture, each: Candidate) -> str:
    words = []
    for name, values in each.facts.items():
        shown = (f"{value:g}" if isinstance(value, float) else repr(value) for value in values)
        words.append(f"{name}={' or '.join(shown)}")
    entry = each.entry
    if each.graph is not None:
        words.append(count_text(len(capture.graphs[each.graph].nodes), "node"))
    elif entry is not None:
        is_old = entry.owner == UNSEEN
        words.append(
            "captured before the recording" if is_old else entry.failure or "without nodes"
        )
    if entry is not None and entry.frames:
        words.append(f"captured at {file_line(capture.frames[entry.frames[0]])}")
    return ", ".join(words)
